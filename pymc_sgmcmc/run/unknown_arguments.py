"""Arguments that `sample` does not have, and what to pass instead."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any

from pymc_sgmcmc.samplers.msgnht import MSGNHT_S

RENAMED = {
    "burn": "tune",
    "num_chains": "chains",
    "num_samples": "draws",
    "num_warmup": "tune",
    "n_jobs": "cores",
    "random_state": "random_seed",
    "seed": "random_seed",
    "start": "initvals",
    "warmup": "tune",
}
"""Names that other samplers and older versions of PyMC give to arguments of `sample`."""
_FOR_NUTS = "it is an argument of NUTS, which pm.sample runs, without step="
INSTEAD = {
    "target_accept": "it sets the step size of NUTS; that of a minibatch step follows from the "
    "bias that you tolerate, step=sgm.MSGNHT_S(target_bias=0.02)",
    "max_treedepth": "it limits the updates per draw of NUTS; those of a minibatch step are thin=, "
    "step=sgm.MSGNHT_S(thin=100)",
    "nuts": "to move some variables by NUTS, pass it as a step, "
    "step=[sgm.MSGNHT_S([w]), pm.NUTS([tau])]",
    "nuts_kwargs": _FOR_NUTS,
    "nuts_sampler": _FOR_NUTS,
    "nuts_sampler_kwargs": _FOR_NUTS,
    "n_init": "a minibatch step's warm-up ends by itself, so leave it out",
    "jitter_max_retries": "an adapted step's warm-up finds where chains start, so leave it out",
    "return_inferencedata": "the result is a DataTree in any case, so leave it out",
    "backend": "pass the compilation mode, compile_kwargs={'mode': 'JAX'}",
}
"""Remedies for arguments of `pm.sample` and its NUTS without an equivalent argument here."""
OF_NUTS = {"init", "tune", *INSTEAD} - {"backend", "return_inferencedata"}
"""Arguments of `pm.sample` that configure NUTS, or set how long it tunes."""
LENGTHS = {"ess", "max_passes", "max_seconds"}
"""Arguments of `sample` that determine when a run ends."""


def instead_of(name: str, known: list[str]) -> str:
    """Return what to pass instead of an argument that `sample` does not have."""
    if name in INSTEAD:
        return f": {INSTEAD[name]}."
    if name in signature(MSGNHT_S).parameters:
        return f": it is an argument of the step, step=sgm.MSGNHT_S({name}=...)."
    similar = [RENAMED[name]] if name in RENAMED else get_close_matches(name, known, n=1)
    return f". Do you mean {similar[0]}=?" if similar else ": see help(sgm.sample)."


def naming_alternatives[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Make a function's errors about unknown arguments say what to pass instead."""
    known = list(signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise TypeError(f"sgm.sample has no argument '{name}'{instead_of(name, known)}")
        return function(*args, **kwargs)

    return checked


def of_pymc_sample(
    passed: dict[str, Any], given: dict[str, Any], known: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of a call of `pm.sample` that `sample` uses, and those left to NUTS.

    Entries of ``given`` replace arguments of the call; ``known`` are all arguments of `sample`.
    """
    rest = {name: value for name, value in passed.items() if name not in given}
    unused = OF_NUTS | ({"draws"} if LENGTHS & given.keys() else set())
    defaults = {"return_inferencedata": True}
    kept = {
        name: value
        for name, value in rest.items()
        if name not in unused and (name in known or value is not defaults.get(name))
    }
    return kept, sorted(unused & rest.keys())
