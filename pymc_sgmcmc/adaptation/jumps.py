"""Parameters that change the likelihood by jumps or bound its support, which no gradient shows."""

from collections.abc import Sequence

import numpy as np
from pymc.exceptions import SamplingError
from pytensor import scalar
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise

from pymc_sgmcmc.adaptation.change_of_form import take_equally_spaced_points
from pymc_sgmcmc.adaptation.objective import Objective
from pymc_sgmcmc.gradients.metric import Metric
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients

TRIES = 2
"""Number of points away from the start at which the likelihood is compared."""
SAME = 1e-9
"""Largest relative change of a log likelihood that may be due to rounding."""
MOST_NAMED = 5
STEEP = 3.0
"""Distance from the mode, in standard deviations by gradient and curvature, beyond which the end of
a search is no mode."""
STEPS = (
    *(scalar.LT, scalar.GT, scalar.LE, scalar.GE, scalar.EQ, scalar.NEQ),
    *(scalar.Floor, scalar.Ceil, scalar.Trunc, scalar.IntDiv, scalar.Mod, scalar.Sign),
    *(scalar.RoundHalfToEven, scalar.RoundHalfAwayFromZero),
)
"""Scalar operations whose result is constant between jumps, or has jumps."""
LINES = 3
"""Number of random lines through the posterior along which jumps are sought."""
NODES = (8, 9)
"""Numbers of nodes of two quadratures along a line, which differ if the gradient has kinks."""
KINKS = 10.0
"""Smallest ratio of a jump to the difference of the quadratures."""
LEAST_JUMP = 0.2
"""Smallest jump of the log likelihood over two posterior standard deviations; kinks of single rows
were mistaken for jumps of up to 0.05."""
MOST_TRIED = 20
"""Largest number of elements that are tried one by one."""
BISECTIONS = 30
GAINS = (0.5, 5.0, 50.0)
"""Predicted gains of log density at which an edge is sought."""


def refuse_jumps(objective: Objective, theta: np.ndarray, rng: np.random.Generator) -> None:
    """Raise an error for parameters that change the likelihood although its gradient is zero.

    A gradient-based sampler would draw them from their prior, which no identity shows.
    """
    gradients = objective.gradients

    value, gradient = _likelihood(objective, theta)
    still = gradient == 0
    if not still.any() or not np.isfinite(value):
        return
    curvature = np.abs(np.diag(gradients.prior_hessian(theta)))
    sd = 1 / np.sqrt(np.where(curvature > 0, curvature, 1.0))

    def moves(elements: np.ndarray) -> bool:
        for _ in range(TRIES):
            shifted = theta + elements * sd * rng.standard_normal(gradients.size)
            there, gradient = _likelihood(objective, shifted)
            if gradient[elements].any():  # it was zero by chance
                return False
            if np.isfinite(there) and abs(there - value) > SAME * abs(value):
                return True
        return False

    with gradients.points_held():
        value, _ = _likelihood(objective, theta)
        if not moves(still):
            return
        each = np.eye(gradients.size, dtype=bool)[still]
        found = [k for k, one in zip(np.flatnonzero(still), each, strict=True) if moves(one)]
    raise SamplingError(
        f"The likelihood depends on {_listed(objective, found)} by jumps only (a comparison, "
        "switch, floor or round of it): its gradient is zero everywhere, so no sampler that uses "
        "gradients can draw it. Make the change smooth, for example "
        "pm.math.sigmoid(difference / width) for difference > 0."
    )


def compared(log_likelihood: Variable, vars: Sequence[Variable]) -> list[bool]:
    """Return which variables a step function in a graph depends on, except in checks."""
    outputs, seen, found = [log_likelihood], set(), list[Variable]()
    while outputs:
        node = outputs.pop().owner
        if node is None or node in seen:
            continue
        seen.add(node)
        outputs += node.inputs[:1] if isinstance(node.op, CheckAndRaise) else node.inputs
        if isinstance(getattr(node.op, "scalar_op", node.op), STEPS):
            found += node.inputs
    behind = set(ancestors(found))
    return [v in behind for v in vars]


def elements_compared(gradients: RowGradients | WholeGradients) -> np.ndarray:
    """Return which elements of theta are in variables that the likelihood compares, shape (d,)."""
    source = gradients.source
    sizes = [int(np.prod(shape)) for shape in source.shapes]
    return np.repeat(compared(source.log_likelihood, source.vars), sizes)


def refuse_hidden_jumps(
    objective: Objective, theta: np.ndarray, metric: Metric, possible: np.ndarray
) -> None:
    """Raise an error for parameters with which the likelihood changes smoothly and by jumps.

    Along a line through the posterior it changes by the integral of its gradient and by its jumps.
    """
    size = objective.gradients.size
    directions = metric.times(np.random.default_rng(0).standard_normal((LINES, size)))

    def jump(shift: np.ndarray) -> float:
        """Return how far the likelihood jumps between theta - shift and theta + shift."""
        change = _likelihood(objective, theta + shift)[0] - _likelihood(objective, theta - shift)[0]
        integrals = []
        for n in NODES:
            at, weights = np.polynomial.legendre.leggauss(n)
            slopes = [_likelihood(objective, theta + t * shift)[1] @ shift for t in at]
            integrals.append(float(weights @ slopes))
        jump = abs(change - integrals[0])
        certain = KINKS * abs(integrals[0] - integrals[1]) < jump < np.inf
        return jump if certain else 0.0

    if max(jump(possible * direction) for direction in directions) < LEAST_JUMP:
        return
    take_equally_spaced_points(objective.gradients)
    each = np.flatnonzero(possible)
    alone = [(np.arange(size) == k) * directions[0] for k in each[:MOST_TRIED]]
    found = [k for k, shift in zip(each, alone, strict=False) if jump(shift) > 0] or list(each)
    raise SamplingError(
        f"The likelihood changes smoothly and by jumps with {_listed(objective, found)} (a "
        "comparison, switch, floor or round of it), and its gradient does not see the jumps: no "
        "sampler that uses gradients can draw it. Make the change smooth, for example "
        "pm.math.sigmoid(difference / width) for difference > 0."
    )


def refuse_edges(objective: Objective, start: np.ndarray, end: np.ndarray) -> None:
    """Raise an error for parameters that the data push against an edge of their support.

    The search for the mode went from ``start`` to ``end``, which may lie beyond an edge set by rows
    that it has not seen.
    """
    theta, local = end, objective.at(end)
    if not np.isfinite(local.value):
        if not np.isfinite(objective.at(start).value):
            return
        theta = _last_inside(objective, start, end)
        local = objective.at(theta)
    slope = np.abs(local.gradient)
    curvature = np.abs(np.diag(objective.gradients.prior_hessian(theta)))
    if (slope > STEEP * np.sqrt(curvature)).any():
        curvature = np.maximum(curvature, np.diag(local.curvature()))
    steep = np.flatnonzero(slope > STEEP * np.sqrt(curvature))

    def has_edge(k: int) -> bool:
        for gain in GAINS:  # of log density, as predicted by the gradient
            there = theta.copy()
            there[k] -= gain / local.gradient[k]
            if not np.isfinite(objective.at(there).value):
                return True
        return False

    found = [k for k in steep[:MOST_NAMED] if has_edge(k)]
    if found:
        raise SamplingError(
            f"The likelihood is 0 beyond an edge that {_listed(objective, found)} sets, and "
            "largest next to it, as where data are uniform up to an unknown bound: gradients do "
            "not see the edge. Use NUTS for this model (pm.sample without step=), which rejects "
            "moves across it."
        )


def _likelihood(objective: Objective, theta: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the log likelihood and its gradient; -infinity where there is no density."""
    local = objective.at(theta)
    return -local.value - objective.gradients.log_prior(theta), local.likelihood_gradient


def _last_inside(objective: Objective, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the last point with a density on the way from one that has it to one that does not."""
    inside, outside = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (inside + outside) / 2
        if np.isfinite(objective.at(start + middle * (end - start)).value):
            inside = middle
        else:
            outside = middle
    return start + inside * (end - start)


def _listed(objective: Objective, elements: Sequence[np.integer]) -> str:
    names = ", ".join(f"'{objective.gradients.names[k]}'" for k in elements[:MOST_NAMED])
    more = len(elements) - MOST_NAMED
    return f"{names} and {more} more" if more > 0 else names
