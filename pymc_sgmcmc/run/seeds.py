"""The seed of a run."""

from copy import deepcopy
from typing import Any

import numpy as np
from pymc.util import (
    RandomGeneratorState,
    get_random_generator,
    get_state_from_generator,
    random_generator_from_state,
)

from pymc_sgmcmc.number_checks import shown
from pymc_sgmcmc.run.saved_state import from_plain, to_plain

STATE = RandomGeneratorState.__name__
"""Marks, in a store's record, a seed that is a generator's state."""


def check_seed(random_seed: Any) -> None:
    """Raise an error for True, False, -1, empty lists, and dicts that are not from a store."""
    empty = isinstance(random_seed, list | tuple | np.ndarray) and np.size(random_seed) == 0
    foreign = isinstance(random_seed, dict) and random_seed.get("__class__") != STATE
    if isinstance(random_seed, bool) or (np.isscalar(random_seed) and random_seed == -1):
        raise ValueError(
            f"random_seed={random_seed} is not allowed: pass another integer, or None for a random "
            "seed."
        )
    if empty or foreign:
        raise _no_seed(random_seed)


def seeded(random_seed: Any) -> tuple[Any, np.random.Generator]:
    """Return a seed as plain values, and its generator."""
    if random_seed is None:
        random_seed = np.random.SeedSequence().entropy
    if isinstance(random_seed, dict):  # a generator's state, from a store
        state = from_plain(random_seed, RandomGeneratorState({}, {}))
        return random_seed, random_generator_from_state(state)
    if isinstance(random_seed, np.random.SeedSequence):  # a copy: it counts spawns
        random_seed = np.random.default_rng(deepcopy(random_seed))
    if isinstance(random_seed, np.random.Generator | np.random.BitGenerator):
        generator = get_random_generator(random_seed)
        return to_plain(get_state_from_generator(generator), "seed"), generator
    plain = random_seed if isinstance(random_seed, int) else np.asarray(random_seed).tolist()
    try:
        return plain, get_random_generator(random_seed)
    except (TypeError, ValueError):
        raise _no_seed(random_seed) from None


def _no_seed(random_seed: Any) -> ValueError:
    return ValueError(
        f"random_seed={shown(random_seed)} must be an integer >= 0, a list of such integers, a "
        "numpy.random.Generator or SeedSequence, or None for a random seed."
    )
