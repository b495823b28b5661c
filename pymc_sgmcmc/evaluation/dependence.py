"""The elements of a row of an observed variable, and which of them depend on each other."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.algorithm import Tensors
from pymc_sgmcmc.evaluation.latent_model import ROWS_PER_CALL, Batch, Compiled, LatentModel
from pymc_sgmcmc.noise import NoiseStream

SMALL = 1e-5
"""Largest relative change of a log probability that counts as a rounding error."""


@dataclass(frozen=True)
class Elements:
    """The data of an observed variable as a matrix, with one column per element of a row."""

    latent_model: LatentModel
    at: int
    """Position of the data among the source's data."""
    observed: str
    """Name of the observed variable."""

    @property
    def axis(self) -> int:
        """The data's axis of rows."""
        return self.latent_model.axes[self.latent_model.source.data[self.at][0]]

    @property
    def position(self) -> int:
        """Position of the variable's term in the joint density."""
        return [t.name for t in self.latent_model.source.joint.terms].index(self.observed)

    def matrix(self, array):
        """Reshape an array that has the data's shape to such a matrix."""
        others = [a for a in range(array.ndim) if a != self.axis]
        return array.transpose([self.axis, *others]).reshape((array.shape[self.axis], -1))

    def of_batch(self, batch: Batch) -> TensorVariable:
        """Return the batch's rows of the data."""
        rows, _, *data = batch.rest
        return self.matrix(data[self.at])[rows]

    def own_rows(self, batch: Batch) -> Batch:
        """Return a batch whose data consist of only its own rows."""
        rows, scale, *data = batch.rest
        for k, (array, _) in enumerate(self.latent_model.source.data):
            if array in self.latent_model.axes:
                data[k] = pt.take(data[k], rows, axis=self.latent_model.axes[array])
        numbers = pt.constant(np.arange(batch.n_rows))
        return batch.of([*batch.theta, numbers, scale, *data])

    def log_density(
        self, own: Batch, x: TensorVariable, z: Tensors
    ) -> tuple[TensorVariable, TensorVariable]:
        """Return the log probability of each element of x, in its shape, and of the rest by row."""
        rows, scale, *data = own.rest
        like = pt.moveaxis(data[self.at], self.axis, 0)
        data[self.at] = pt.moveaxis(x.reshape(like.shape), 0, self.axis)
        joint = own.of([*own.theta, rows, scale, *data]).joint()
        term = joint.terms[self.position]
        rest = dataclasses.replace(joint, terms=[t for t in joint.terms if t is not term])
        of_elements, of_rest = joint.evaluate([term.logp, rest.of_rows], z)
        return of_elements.reshape(x.shape), of_rest


def dependence(
    elements: Elements,
    data: Sequence[np.ndarray],
    theta: Sequence[np.ndarray],
    rng: np.random.Generator,
    compile_kwargs: dict[str, Any] | None,
) -> np.ndarray:
    """Find what depends on each element of the first row, given the latent variables.

    It flips one binary element after another. In the result, shape (P, P + 1), [i, j] is True if
    the probability of element j changes with element i (False for i = j), and [i, P] if anything
    else does.
    """
    first = elements.matrix(data[1 + elements.at])[0]
    n_elements = len(first)
    n_rows = min(ROWS_PER_CALL, n_elements + 1)
    x = pt.tensor("x", shape=(n_rows, n_elements), dtype=first.dtype)

    def expression(batch: Batch, stream: NoiseStream, x):
        own = elements.own_rows(batch)
        prior = own.joint().draw_prior(stream)
        same = [pt.repeat(v[:1], n_rows, axis=0).astype(v.dtype) for v in prior]
        of_elements, of_rest = elements.log_density(own, x, same)
        return [pt.concatenate([of_elements, of_rest[:, None]], axis=1)]

    evaluate = Compiled(elements.latent_model, expression, n_rows, rng, compile_kwargs, extra=[x])
    depends = np.zeros((n_elements, n_elements + 1), dtype=bool)
    for begin in range(0, n_elements, n_rows - 1):
        flipped = np.arange(begin, min(begin + n_rows - 1, n_elements))
        block = np.repeat(first[None], n_rows, axis=0)  # its first row is not changed
        block[1 + np.arange(len(flipped)), flipped] = first[flipped] == 0
        evaluate.put([*data, block])
        [log_p] = evaluate(theta, np.zeros(n_rows, dtype=np.int64))
        change = np.abs(log_p[1:] - log_p[0])[: len(flipped)]
        depends[flipped] = change > SMALL * (1 + np.abs(log_p[0]))
    depends[np.arange(n_elements), np.arange(n_elements)] = False
    return depends
