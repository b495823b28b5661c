"""The metric of models with local variables: a scale for each of their elements."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_sgmcmc.gradients.metric import Metric, flat, split_flat


class LocalScales(Metric):
    """A scale for each element of local variables, and a matrix for all others together.

    z has one flat vector for the shared variables, if there are any, then an array for each local
    variable, with its shape. An update gathers the scales of the groups that it moves.
    """

    name = "local"

    def __init__(self, shapes: Sequence[tuple[int, ...]], is_local: Sequence[bool]):
        self.is_local = list(is_local)
        both = list(zip(shapes, is_local, strict=True))
        self.shared_shapes = [shape for shape, local in both if not local]
        self.local_shapes = [shape for shape, local in both if local]
        self.n_shared = sum(int(np.prod(shape)) for shape in self.shared_shapes)
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
        parts = [np.arange(a, b) for a, b in pairwise(ends)]
        shared = [part for part, local in zip(parts, is_local, strict=True) if not local]
        local = [part for part, local in zip(parts, is_local, strict=True) if local]
        self.order = np.concatenate([*shared, *local])
        """Index into theta of each element of z."""
        super().__init__(shapes)

    def identity(self):
        floatX = pytensor.config.floatX
        matrix = [np.eye(self.n_shared, dtype=floatX)] if self.n_shared else []
        return matrix + [np.ones(shape, floatX) for shape in self.local_shapes]

    def set(self, matrix: np.ndarray, scales: Sequence[np.ndarray]) -> None:
        """Set L of the shared elements, shape (s, s), and the scales of each local variable."""
        matrices = [matrix] if self.n_shared else []
        each = [*matrices, *scales]
        self.arrays = [np.asarray(a, pytensor.config.floatX, order="C") for a in each]

    @property
    def z_shapes(self):
        vector = [(self.n_shared,)] if self.n_shared else []
        return vector + self.local_shapes

    def start(self, dtypes):
        shared, local = self._shared_and_local(dtypes)
        types = [np.result_type(*shared)] if shared else []
        return [np.zeros(s, t) for s, t in zip(self.z_shapes, [*types, *local], strict=True)]

    def z_touched(self, touched):
        _, local = self._shared_and_local(touched)
        return [None] * (len(self.z_shapes) - len(local)) + local

    def inputs_touched(self, touched):
        return self.z_touched(touched)

    def zeros(self, theta):
        shared, local = self._shared_and_local(theta)
        dtypes = [t.dtype for t in shared]
        vector = [pt.zeros((self.n_shared,), np.result_type(*dtypes))] if shared else []
        return vector + [pt.zeros_like(t) for t in local]

    def to_theta(self, z, arrays):
        n = len(z) - len(self.local_shapes)
        shared = split_flat(arrays[0] @ z[0], self.shared_shapes) if n else []
        scaled = zip(arrays[n:], z[n:], strict=True)
        local = [(s * v).astype(v.dtype) for s, v in scaled]
        take = {False: iter(shared).__next__, True: iter(local).__next__}
        return [take[is_local]() for is_local in self.is_local]

    def to_z(self, g, arrays):
        shared, local = self._shared_and_local(g)
        vector = [pt.concatenate([v.ravel() for v in shared]) @ arrays[0]] if shared else []
        scales = arrays[len(vector) :]
        return vector + [(s * v).astype(v.dtype) for s, v in zip(scales, local, strict=True)]

    def times(self, z):
        theta = np.empty(np.shape(z))
        theta[..., self.order] = self._product(z, lambda matrix, shared: shared @ matrix.T)
        return theta

    def transposed_times(self, g):
        ordered = np.asarray(g)[..., self.order]
        return self._product(ordered, lambda matrix, shared: shared @ matrix)

    def inverse_times(self, shift):
        ordered = np.asarray(shift)[self.order]
        n = self.n_shared
        scales = flat(self.arrays[1 if n else 0 :])
        local = ordered[n:] / scales
        if not n:
            return local
        shared = np.linalg.solve(np.asarray(self.arrays[0], float), ordered[:n])
        return np.concatenate([shared, local])

    def spread(self):
        n = self.n_shared
        matrix = np.asarray(self.arrays[0], float) if n else np.empty((0, 0))
        spread = np.empty(self.size)
        local = flat(self.arrays[1 if n else 0 :])
        spread[self.order] = np.concatenate([np.linalg.norm(matrix, axis=1), local])
        return spread

    def _product(self, z, of_shared):
        n = self.n_shared
        local = z[..., n:] * flat(self.arrays[1 if n else 0 :])
        if not n:
            return local
        shared = of_shared(np.asarray(self.arrays[0], float), z[..., :n])
        return np.concatenate([shared, local], axis=-1)

    def _shared_and_local(self, each: Sequence) -> tuple[list, list]:
        """Split a list with one entry per variable."""
        both = list(zip(each, self.is_local, strict=True))
        return [e for e, local in both if not local], [e for e, local in both if local]
