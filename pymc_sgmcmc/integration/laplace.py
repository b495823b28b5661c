r"""Modes of many groups at once, and the log of each group's integral around its mode.

For each group, with h(a) = log p(y, a | shared) of its k effects::

    a* = argmax h,   L L' = (-h''(a*))^{-1}
    log integral exp h(a) da = log sum_s w_s exp(h(a* + L x_s) - log N(a* + L x_s; a*, L L'))

(adaptive quadrature: Pinheiro and Bates 1995), with points x_s and weights w_s for the standard
normal density. a* and L are constants for derivatives: the sum is nearly the same for all of them.
"""

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.scan.basic import scan
from pytensor.scan.utils import until
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.integration.points import Points

MAX_STEPS = 60
CLOSE = 1e-5
"""Newton's steps end when -h can fall by no more than this in any group."""
DAMPING = 1e-3
"""First damping of Newton's steps, relative to the curvature; it changes tenfold."""

type LogJoint = Callable[[TensorVariable], TensorVariable]
"""Effects, shape (groups, k), to log joint densities, shape (groups,)."""


def curvature(log_joint: LogJoint, a: TensorVariable, k: int):
    """Gradient, shape (groups, k), and entries of -h'', k x k vectors of shape (groups,)."""
    gradient = pt.grad(log_joint(a).sum(), a)
    rows = [pt.grad(gradient[:, i].sum(), a) for i in range(k)]
    return gradient, [[-row[:, j] for j in range(k)] for row in rows]


def cholesky(matrix: list[list[TensorVariable]], k: int) -> list[list[TensorVariable]]:
    """Lower factors of many k x k matrices, made positive where they are not."""
    factor: list[list[TensorVariable]] = [[pt.zeros_like(matrix[0][0])] * k for _ in range(k)]
    for i in range(k):
        for j in range(i + 1):
            left = matrix[i][j] - sum((factor[i][m] * factor[j][m] for m in range(j)), 0.0)
            if i == j:
                floor = 1e-8 * (pt.abs(matrix[i][i]) + 1e-8)
                factor[i][i] = pt.sqrt(pt.maximum(left, floor))
            else:
                factor[i][j] = left / factor[j][j]
    return factor


def solve_lower(factor, b: list[TensorVariable]) -> list[TensorVariable]:
    """Solve C x = b for each group."""
    x: list[TensorVariable] = []
    for i, row in enumerate(factor):
        x.append((b[i] - sum((row[m] * x[m] for m in range(i)), 0.0)) / row[i])
    return x


def solve_upper(factor, b: list[TensorVariable]) -> list[TensorVariable]:
    """Solve C' x = b for each group; ``b`` may have axes before that of the groups."""
    k = len(factor)
    x: list[TensorVariable] = [b[0]] * k
    for i in reversed(range(k)):
        x[i] = (b[i] - sum((factor[m][i] * x[m] for m in range(i + 1, k)), 0.0)) / factor[i][i]
    return x


def columns(a: TensorVariable, k: int) -> list[TensorVariable]:
    """Split the last axis."""
    return [a[..., i] for i in range(k)]


def modes(log_joint: LogJoint, start: TensorVariable, k: int) -> TensorVariable:
    """Find the modes by Newton's method with Levenberg's damping, for each group its own."""

    def step(a, h, damping):
        gradient, matrix = curvature(log_joint, a, k)
        damped = [
            [m + (damping * (pt.abs(m) + 1e-6) if i == j else 0.0) for j, m in enumerate(row)]
            for i, row in enumerate(matrix)
        ]
        factor = cholesky(damped, k)
        half = solve_lower(factor, columns(gradient, k))
        move = pt.stack(solve_upper(factor, half), axis=-1)
        new = a + move
        h_new = log_joint(new)
        better = pt.ge(h_new, h)
        a = pt.switch(better[:, None], new, a)
        gain = sum((x**2 for x in half), pt.zeros_like(h))
        left = pt.switch(better, gain, pt.switch(pt.lt(damping, 1e8), 1.0, 0.0))
        damping = pt.switch(better, damping * 0.1, damping * 10)
        return (a, pt.switch(better, h_new, h), damping), until(pt.all(left < CLOSE))

    (path, _, _) = scan(
        step,
        outputs_info=[start, log_joint(start), pt.full_like(start[:, 0], DAMPING)],
        n_steps=MAX_STEPS,
        return_updates=False,
    )
    return path[-1]


def log_integrals(
    log_joint: LogJoint,
    at_points: LogJoint,
    start: TensorVariable,
    points: Points,
) -> TensorVariable:
    """Log of each group's integral, shape (groups,).

    Parameters
    ----------
    log_joint : callable
    at_points : callable
        The same of effects of shape (points, groups, k).
    start : shape (groups, k)
        Where Newton's steps begin.
    points : Points
    """
    k = points.x.shape[1]
    constant = disconnected_grad(modes(log_joint, disconnected_grad(start), k))
    _, matrix = curvature(log_joint, constant, k)
    factor = [[disconnected_grad(c) for c in row] for row in cholesky(matrix, k)]
    x = [pt.constant(c[:, None].astype(start.dtype)) for c in points.x.T]
    moved = [m + dx for m, dx in zip(columns(constant, k), solve_upper(factor, x), strict=True)]
    h = at_points(pt.stack(moved, axis=-1))
    half_squares = 0.5 * np.sum(points.x**2, axis=1) + points.log_weights
    log_volume = -sum(pt.log(factor[i][i]) for i in range(k)) + 0.5 * k * np.log(2 * np.pi)
    return pt.logsumexp(h + half_squares[:, None].astype(start.dtype), axis=0) + log_volume
