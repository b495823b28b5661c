r"""Metrics: a change of variables theta = theta_0 + L z, so that the sampler works in z.

With L L' about the posterior's covariance, all directions of z have about the same scale, and a
step size has the same meaning for every model. theta_0 is the point before the update: an update
begins at z = 0 and moves theta by L z, and the gradient with respect to z is L' g. So nothing is
solved or inverted, and L may change between compiled calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.algorithm import Gradient, MappedGradient, Tensors
from pymc_sgmcmc.local_slots import Touched


class Metric(ABC):
    """The form of L, whose numbers are inputs of the compiled updates."""

    name: Literal["dense", "diag", "local"]
    """Name as in the argument ``adaptation=``; "local" is the name of `LocalScales`."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]):
        self.shapes = list(shapes)
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.size = sum(self.sizes)
        self.arrays = self.identity()

    @abstractmethod
    def identity(self) -> list[np.ndarray]:
        """Return arrays with which L is the identity."""

    @property
    @abstractmethod
    def z_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of z: those of theta, or one flat vector."""

    @abstractmethod
    def to_theta(self, z: Tensors, arrays: Tensors) -> Tensors:
        """Return L z, shaped like theta; z has shapes `z_shapes`, ``arrays`` are as `inputs`."""

    @abstractmethod
    def to_z(self, g: Tensors, arrays: Tensors) -> Tensors:
        """Return L' g, shaped like z; ``g`` is shaped like theta."""

    @abstractmethod
    def times(self, z: np.ndarray) -> np.ndarray:
        """Return L z in NumPy, for flat vectors z, shape (..., d)."""

    @abstractmethod
    def transposed_times(self, g: np.ndarray) -> np.ndarray:
        """Return L' g in NumPy, for flat vectors g, shape (..., d)."""

    @property
    def matrix(self) -> np.ndarray:
        """Return L, shape (d, d)."""
        return self.times(np.eye(self.size)).T

    def inverse_times(self, shift: np.ndarray) -> np.ndarray:
        """Return z for a flat vector theta - theta_0, shape (d,)."""
        return np.linalg.solve(self.matrix, shift)

    def spread(self) -> np.ndarray:
        """Return the standard deviation of each element of L z for z ~ N(0, I), shape (d,)."""
        return np.linalg.norm(self.times(np.eye(self.size)), axis=0)

    @property
    def inputs(self) -> list[TensorVariable]:
        """Symbolic inputs for `arrays`."""
        return [pt.tensor(shape=a.shape, dtype=pytensor.config.floatX) for a in self.arrays]

    def start(self, dtypes: Sequence[str]) -> list[np.ndarray]:
        """Return z = 0 for a sampler's initial state, given the types of the sampled variables."""
        if len(self.z_shapes) == len(self.shapes):
            return [np.zeros(s, t) for s, t in zip(self.z_shapes, dtypes, strict=True)]
        return [np.zeros(self.size, np.result_type(*dtypes))]

    def z_touched(self, touched: Sequence[Touched | None]) -> list[Touched | None]:
        """Return the groups that a batch moves in each array of z, from those of each variable."""
        return [None] * len(self.z_shapes)

    def inputs_touched(self, touched: Sequence[Touched | None]) -> list[Touched | None]:
        """Return the groups that a batch moves in each of `inputs`, like `z_touched`."""
        return [None] * len(self.arrays)

    def zeros(self, theta: Tensors) -> Tensors:
        """Return symbolic zeros z for the elements of theta that an update moves."""
        starts = self.start([t.dtype for t in theta])
        return [pt.zeros(a.shape, dtype=a.dtype) for a in starts]

    def gradient(self, whole: Gradient, arrays: Tensors) -> MappedGradient:
        """Return the gradient with respect to z: L' times that with respect to theta."""
        return MappedGradient(
            whole, lambda g: self.to_z(g, arrays), lambda z: self.to_theta(z, arrays)
        )


class Diagonal(Metric):
    """A diagonal L with a scale for each element; z has theta's shapes."""

    name = "diag"

    def identity(self):
        return [np.ones(shape, pytensor.config.floatX) for shape in self.shapes]

    def set(self, scales: np.ndarray) -> None:
        """Set the flat diagonal of L, shape (d,)."""
        self.arrays = split_flat(np.asarray(scales, pytensor.config.floatX), self.shapes)

    def scale_to(self, matrix: np.ndarray) -> None:
        """Set L so that z has variance 1 where theta, given everything else, has 1 / diagonal.

        ``matrix`` is the inverse of the covariance of theta, shape (d, d).
        """
        self.set(np.diag(matrix) ** -0.5)

    def fit_to_noise(
        self, noise: np.ndarray, matrix: np.ndarray
    ) -> tuple[np.ndarray, float, float]:
        """Return the noise's variances in z, and the largest and smallest curvature of z.

        ``noise`` is the covariance of the gradient's noise in z, shape (d, d), and ``matrix`` the
        inverse of the covariance of theta. The largest variance is that along the noise's own axes.
        """
        variances = np.diag(noise).copy()
        variances[variances.argmax()] = np.linalg.eigvalsh(noise)[-1]
        scaled = self.transposed_times(self.transposed_times(matrix).T)
        eigenvalues = np.linalg.eigvalsh((scaled + scaled.T) / 2)
        return variances, float(eigenvalues[-1]), float(eigenvalues[0])

    @property
    def z_shapes(self):
        return self.shapes

    def to_theta(self, z, arrays):
        return [(s * v).astype(v.dtype) for s, v in zip(arrays, z, strict=True)]

    def to_z(self, g, arrays):
        return [(s * v).astype(v.dtype) for s, v in zip(arrays, g, strict=True)]

    def times(self, z):
        return z * flat(self.arrays)

    def transposed_times(self, g):
        return g * flat(self.arrays)

    def inverse_times(self, shift):
        return shift / flat(self.arrays)

    def spread(self):
        return flat(self.arrays)


class Dense(Metric):
    """Any matrix L, shape (d, d); z is one flat vector."""

    name = "dense"

    def identity(self):
        return [np.eye(self.size, dtype=pytensor.config.floatX)]

    def set(self, matrix: np.ndarray) -> None:
        """Set L, shape (d, d)."""
        self.arrays = [np.ascontiguousarray(matrix, pytensor.config.floatX)]

    def scale_to(self, matrix: np.ndarray) -> None:
        """Set L so that z has the covariance I if theta has the inverse of ``matrix``."""
        self.set(root_of_inverse(matrix))

    def fit_to_noise(
        self, noise: np.ndarray, matrix: np.ndarray
    ) -> tuple[np.ndarray, float, float]:
        """Make the noise's axes those of z, so that a thermostat per element absorbs it.

        Return its variances there, and the largest and smallest curvature of z, which are 1 after
        `scale_to`. ``noise`` is the covariance of the gradient's noise in z, shape (d, d).
        """
        variances, axes = np.linalg.eigh(noise)
        self.set(np.asarray(self.arrays[0], float) @ axes)
        return variances, 1.0, 1.0

    @property
    def z_shapes(self):
        return [(self.size,)]

    def to_theta(self, z, arrays):
        return split_flat(arrays[0] @ z[0], self.shapes)

    def to_z(self, g, arrays):
        return [pt.concatenate([v.ravel() for v in g]) @ arrays[0]]

    def times(self, z):
        return z @ np.asarray(self.arrays[0], float).T

    def transposed_times(self, g):
        return g @ np.asarray(self.arrays[0], float)


def root_of_inverse(matrix: np.ndarray) -> np.ndarray:
    """Return L with L L' = the inverse of a positive matrix, shape (d, d)."""
    scale = 1 / np.sqrt(np.diag(matrix))
    cholesky = np.linalg.cholesky(matrix * np.outer(scale, scale))
    return scale[:, None] * np.linalg.inv(cholesky).T


def flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Join arrays into one float64 vector."""
    return np.concatenate([np.ravel(a) for a in arrays]).astype(float)


def split_flat(vector, shapes: Sequence[tuple[int, ...]]) -> list:
    """Cut a flat vector, symbolic or not, into arrays of these shapes."""
    parts, begin = [], 0
    for shape in shapes:
        end = begin + int(np.prod(shape))
        parts.append(vector[begin:end].reshape(shape))
        begin = end
    return parts
