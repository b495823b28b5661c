"""Sparse Hessians from a few differences of gradients.

Columns of which no two have an element in the same row share a difference: they have the same
colour (Curtis, Powell and Reid 1974). Full columns, such as those of parameters that all rows
share, have a colour each; their elements in the other columns follow by symmetry.
"""

from collections.abc import Callable

import numpy as np

FULL = 0.2
"""Share of nonzero elements from which a column counts as full."""


def colours(pattern: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a colour for each column of a symmetric boolean pattern, and which columns are full.

    The pattern has shape (d, d), the two results have shape (d,).
    """
    full = pattern.mean(axis=0) > FULL
    rest = (pattern & ~full[:, None] & ~full).astype("float32")
    np.fill_diagonal(rest, 1.0)
    conflict = rest @ rest > 0
    found = np.full(len(pattern), -1)
    found[full] = np.arange(full.sum())
    first = int(full.sum())
    for j in np.flatnonzero(~full):
        taken = set(found[conflict[j]])
        found[j] = next(c for c in range(first, first + j + 1) if c not in taken)
    return found, full


def spread_of(curvature: np.ndarray) -> np.ndarray:
    """Return an element's standard deviation given all others, from the diagonal of a Hessian.

    The prior of a scale may curve the other way, by more than the rows: then it is 1.
    """
    return 1 / np.sqrt(np.where(curvature > 0, curvature, 1.0))


def hessian_by_colours(
    gradient: Callable[[np.ndarray], np.ndarray],
    theta: np.ndarray,
    steps: np.ndarray,
    pattern: np.ndarray,
    of_column: np.ndarray,
    full: np.ndarray,
) -> np.ndarray:
    """Return a Hessian with a known pattern by central differences, two gradients per colour.

    ``steps``, shape (d,), are half the distances between gradients, and ``pattern``, shape (d, d),
    is the symmetric pattern of elements that may differ from 0; ``of_column`` and ``full`` are its
    `colours`.
    """
    hessian = np.zeros(pattern.shape)
    for colour in range(of_column.max() + 1):
        chosen = of_column == colour
        step = np.where(chosen, steps, 0.0)
        change = (gradient(theta + step) - gradient(theta - step)) / 2
        own = pattern[:, chosen] if full[chosen].any() else pattern[:, chosen] & ~full[:, None]
        hessian[:, chosen] = np.where(own, change[:, None] / steps[chosen], 0.0)
    hessian[full] = hessian[:, full].T
    return (hessian + hessian.T) / 2
