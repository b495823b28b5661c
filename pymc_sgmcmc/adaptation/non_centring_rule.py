"""Effects of which the rows say less than their prior: better sampled non-centred."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import pytensor
from pymc.model import Model

from pymc_sgmcmc.backends.compile_time import without_code
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.gradients.flat_model import FlatModel
from pymc_sgmcmc.integration.non_centring import centred_effects

WEAK = 0.5
"""Share of the prior in the curvature along effects, their mean, from which they are weak."""

_allowed: ContextVar[bool] = ContextVar("whether a model may be rewritten", default=False)


class WeakEffects(Exception):
    """A warm-up found effects that are better sampled in the non-centred parametrisation."""

    def __init__(self, known: dict[str, np.ndarray], passes: float):
        super().__init__(f"The rows say little of {', '.join(known)}.")
        self.known, self.passes = known, passes


@contextmanager
def non_centring_allowed() -> Iterator[None]:
    """Let warm-ups in this block raise `WeakEffects`."""
    before = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(before)


def non_centring_is_allowed() -> bool:
    """Whether warm-ups may raise `WeakEffects`."""
    return _allowed.get()


def weak_effects(
    model: Model, gradients: FlatModel, theta: np.ndarray, curvature: np.ndarray, score: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the centred effects of which the rows say less than their prior, and what they say.

    That is what `with_non_centred_effects` takes. ``curvature`` is its diagonal at theta, and
    ``score`` the gradient of the log likelihood, shape (d,).
    """
    effects = centred_effects(model)
    if not effects:
        return {}
    scales = model.replace_rvs_by_values(list(effects.values()))
    with without_code():
        function = pytensor.function(
            gradients.source.vars, scales, mode=PYTHON, on_unused_input="ignore"
        )
    point = gradients.split(theta)
    scale_of = dict(zip(effects, function(*point), strict=True))
    weak = {}
    for value, array, part in zip(gradients.source.vars, point, gradients.parts, strict=True):
        rv = model.values_to_rvs[value]
        if rv in scale_of:
            of_prior = np.broadcast_to(scale_of[rv] ** -2.0, array.shape).ravel()
            if np.mean(of_prior / curvature[part]) > WEAK:
                h = np.maximum(curvature[part] - of_prior, 0.0)
                known = np.stack([h, h * array.ravel() + score[part]])
                weak[rv.name] = known.reshape(2, *array.shape)
    return weak
