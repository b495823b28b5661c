"""Matrices of curvature: made positive, and turned into the scales of a metric."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from pymc.exceptions import SamplingError
from scipy.linalg import solve_triangular

from pymc_sgmcmc.gradients.metric import root_of_inverse

FLOOR = 1e-13
"""Smallest eigenvalue relative to the largest, of a matrix scaled to a unit diagonal."""

UNDERFLOWN = 1e8
"""Size of an element, in a matrix scaled to a unit diagonal, beyond which its diagonal has been
rounded to zero."""

NO_CURVATURE = 1e-7
"""Largest eigenvalue, with a unit diagonal, that may be the error of differences of gradients."""
NO_INFORMATION = 1e-12
"""The same for a sum of the rows' g g' in double precision, which involves no differences."""

DIFFERENT = 1.5
"""Ratio of a second derivative to the Fisher information beyond which the former is used."""


class Eigen(NamedTuple):
    """A symmetric matrix as s Q diag(w) Q' s, with a unit diagonal between the scales s."""

    scale: np.ndarray
    values: np.ndarray
    vectors: np.ndarray


def undetermined(matrix: np.ndarray, no_curvature: float = NO_CURVATURE) -> np.ndarray:
    """Return the indices of the parameters along which there is no curvature.

    Their diagonal is zero, or they are large in a direction whose eigenvalue is almost zero.
    """
    diagonal = np.abs(np.diag(matrix))
    flat = np.flatnonzero(~(diagonal > 1e-200))
    if flat.size:
        return flat
    scale = np.sqrt(diagonal)
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    smallest = np.argmin(np.abs(values))
    if np.abs(values[smallest]) > no_curvature * np.abs(values).max():
        return np.array([], dtype=int)
    size = np.abs(vectors[:, smallest])
    return np.flatnonzero(size > size.max() / 2)


def refuse_undetermined(
    matrix: np.ndarray, names: Sequence[str], no_curvature: float = NO_CURVATURE
) -> None:
    """Raise an error that names the elements along which a posterior has no curvature."""
    if not np.isfinite(matrix).all():
        raise SamplingError(
            "The second derivatives of the log posterior are not finite where the warm-up "
            "starts. Pass step_size=, batch_size= and thin= yourself, or another initial_point."
        )
    found = undetermined(matrix, no_curvature) if matrix.size else np.array([], dtype=int)
    if not found.size:
        return
    shown = ", ".join(f"'{names[j]}'" for j in found[:5])
    more = f" and {found.size - 5} more" if found.size > 5 else ""
    raise SamplingError(
        f"Data and priors leave {shown}{more} undetermined: along some direction of them the log "
        "posterior has no curvature. Give them proper priors, or narrower ones, or remove constant "
        "or redundant columns."
    )


def eigen(matrix: np.ndarray) -> Eigen:
    """Decompose a matrix scaled to a unit diagonal, using the absolute values of its eigenvalues.

    Along directions with negative eigenvalues the posterior is not concave, but it is about as wide
    as their absolute values suggest.
    """
    scale = np.sqrt(np.maximum(np.abs(np.diag(matrix)), 1e-300))
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    values = np.abs(values)
    return Eigen(scale, np.maximum(values, FLOOR * values.max()), vectors)


def positive(matrix: np.ndarray) -> np.ndarray:
    """Return the matrix with its negative eigenvalues made positive."""
    scale, values, vectors = eigen(matrix)
    return (vectors * values) @ vectors.T * np.outer(scale, scale)


class Factor:
    """Cholesky factor of a symmetric matrix, made positive as in `eigen`, to solve and to draw.

    ``damping`` is added to the diagonal after scaling it to ones.
    """

    def __init__(self, matrix: np.ndarray, damping: float = FLOOR):
        self.scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(matrix)), 1e-300))
        with np.errstate(over="ignore"):
            scaled = matrix * np.outer(self.scale, self.scale)
        scaled = np.clip(scaled, -UNDERFLOWN, UNDERFLOWN)
        more = damping * np.eye(len(matrix))
        try:
            self.cholesky = np.linalg.cholesky(scaled + more)
        except np.linalg.LinAlgError:
            self.cholesky = np.linalg.cholesky(positive(scaled) + more)

    def solve(self, vector: np.ndarray) -> np.ndarray:
        """Return the inverse times a vector."""
        return self.root_times(solve_triangular(self.cholesky, self.scale * vector, lower=True))

    def root_times(self, z: np.ndarray) -> np.ndarray:
        """Return L times a vector, where L L' is the inverse."""
        return self.scale * solve_triangular(self.cholesky, z, lower=True, trans=1)

    @property
    def log_determinant(self) -> float:
        """Return the logarithm of the matrix's determinant."""
        return 2 * float(np.sum(np.log(np.diag(self.cholesky)) - np.log(self.scale)))


def no_wider_than(sds: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return a positive matrix with smaller standard deviations and unchanged correlations."""
    own = np.sqrt(np.diag(np.linalg.inv(matrix)))
    factor = np.where(sds > 0, np.maximum(own / np.maximum(sds, 1e-300), 1.0), 1.0)
    return matrix * np.outer(factor, factor)


def with_second_derivatives(
    information: np.ndarray,
    elements: Sequence[int] | np.ndarray,
    gradient: Callable[[np.ndarray], np.ndarray],
    points: np.ndarray,
    steps: np.ndarray,
) -> np.ndarray:
    """Insert rows of a Hessian into a Fisher information where their diagonals differ.

    ``elements`` are the rows to compare, ``gradient`` is that of -log posterior, and the Hessian is
    averaged over ``points``, shape (n, d), by central differences over twice ``steps``, shape (d,).
    """
    found = information.copy()
    for j in elements:
        step = np.where(np.arange(len(steps)) == j, steps, 0.0)
        differences = [gradient(p + step) - gradient(p - step) for p in points]
        row = np.mean(differences, axis=0) / (2 * steps[j])
        if not 1 / DIFFERENT < row[j] / information[j, j] < DIFFERENT:
            found[j] = found[:, j] = row
    return found


def largest_change(old: np.ndarray, new: np.ndarray) -> float:
    """Return the largest |log| of the eigenvalues of old^-1 new, both positive."""
    root = root_of_inverse(old)
    values = np.linalg.eigvalsh(root.T @ new @ root)
    return float(np.abs(np.log(np.maximum(values, 1e-12))).max())
