"""Effects about which the rows say less than their prior, better sampled non-centred."""

import numpy as np
import pytensor
from pymc.model import Model

from pymc_sgmcmc.adaptation.objective import Objective
from pymc_sgmcmc.backends.compile_time import without_code
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.integration.partial_non_centring import centred_effects, scales_of, width_of_scale

WEAK = 0.5
"""Mean share of the prior in the curvature along the effects of a scale above which they are
weak."""
ROUNDING = 1e-13
"""Rounding error of a curvature, relative to it, with a margin."""


def weak_effects(
    model: Model, objective: Objective, theta: np.ndarray, curvature: np.ndarray
) -> dict[str, np.ndarray]:
    """Return what is known about all centred effects apart from their prior, if some are weak.

    The result is the argument of `with_non_centred_effects`, and empty if no effects are weak.
    Effects with scales of their own always are, because elsewhere in the posterior some of these
    may be far smaller. ``curvature`` is the diagonal, shape (d,).
    """
    effects = centred_effects(model)
    if not effects:
        return {}
    flat, gradient = objective.gradients, -objective.at(theta).gradient
    priors = [v for rv in effects for v in rv.owner.op.dist_params(rv.owner)]
    with without_code():
        function = pytensor.function(
            flat.source.vars,
            model.replace_rvs_by_values(priors),
            mode=PYTHON,
            on_unused_input="ignore",
        )
    point = flat.split(theta)
    of_priors = iter(function(*point))
    prior_of = {rv: (next(of_priors), next(of_priors)) for rv in effects}
    known: dict[str, np.ndarray] = {}
    scales: dict[str, np.ndarray] = {}
    is_weak = False
    at = {model.values_to_rvs[v]: x for v, x in zip(flat.source.vars, point, strict=True)}
    for value, array, part in zip(flat.source.vars, point, flat.parts, strict=True):
        rv = model.values_to_rvs[value]
        if rv in prior_of:
            mean, scale = prior_of[rv]
            of_prior = np.broadcast_to(scale**-2.0, array.shape).ravel()
            h = of_rows(curvature[part], of_prior)
            slope = gradient[part] + of_prior * np.ravel(array - mean)
            known[rv.name] = np.stack([h, h * array.ravel() + slope]).reshape(2, *array.shape)
            found = scales_of(model, rv, array.shape)
            of_effects = np.zeros(array.size, int) if found is None else found[1].ravel()
            sums = np.bincount(of_effects, of_prior / curvature[part])
            effects_per_scale = np.bincount(of_effects)
            has_own_scales = scale.size > 1 and (found is None or effects_per_scale.max() == 1)
            if not (has_own_scales or (sums > WEAK * effects_per_scale).any()):
                continue
            is_weak = True
            if found is None or has_own_scales:  # a scale of one effect has a long upper tail
                continue
            if (width := width_of_scale(model, *found, h)) is not None:
                scales[found[0].name] = np.stack([width, np.exp(at[found[0]])])
    return known | scales if is_weak else {}


def of_rows(curvature: np.ndarray, of_prior: np.ndarray) -> np.ndarray:
    """Return the rows' part of the curvature of effects, shape (elements,).

    Where the prior's part is so much larger that the difference is a rounding error, it is that of
    the other effects.
    """
    h = np.maximum(curvature - of_prior, 0.0)
    is_known = h > ROUNDING * curvature
    typical = np.median(h[is_known]) if is_known.any() else 0.0
    return np.where(ROUNDING * curvature > typical, typical, h)
