"""A model with latent variables of rows, evaluated at draws of theta on any rows."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pymc.model import Model
from pymc.model.transform.conditioning import remove_value_transforms
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.random.type import random_generator_type
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.backend import backend_of, naming_a_remedy
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.gradients.arrays import Array, array_value, observed_array, refuse_nan_in
from pymc_sgmcmc.gradients.data_check import IndexCheck
from pymc_sgmcmc.gradients.rows_in_batches import find_row_axis, sliced_axis
from pymc_sgmcmc.latents.gibbs.gibbs import Gibbs
from pymc_sgmcmc.latents.gradient import LatentGradientSource, latent_gradient_source
from pymc_sgmcmc.latents.joint import Joint, LatentDraws, Latents, find_latents, without_latents
from pymc_sgmcmc.noise import NoiseStream

ROWS_PER_CALL = 512
"""Number of rows per compiled call, which bounds its memory."""

type Draws = xr.DataTree | xr.Dataset | Mapping[str, Any]


@dataclass(frozen=True)
class Batch:
    """Symbolic rows of the data at one theta."""

    source: LatentGradientSource
    n_rows: int
    theta: list[TensorVariable]
    rest: list[TensorVariable]
    """Row indices, N / n and data, as in `GradientSource.inputs`."""

    @property
    def inputs(self) -> list[TensorVariable]:
        return [*self.theta, *self.rest]

    @property
    def rows(self) -> TensorVariable:
        """Indices of its rows in the data."""
        return self.rest[0]

    def of(self, inputs: Sequence[TensorVariable]) -> "Batch":
        """Return the same with other inputs."""
        k = len(self.theta)
        return dataclasses.replace(self, theta=list(inputs[:k]), rest=list(inputs[k:]))

    def joint(self, theta: list[TensorVariable] | None = None) -> Joint:
        """Return log p(x, z | theta) of the rows."""
        joint = dataclasses.replace(self.source.joint, n_rows=self.n_rows)
        values = [*(self.theta if theta is None else theta), *self.rest]
        return joint.at(dict(zip(self.source.inputs, values, strict=True)))


class Compiled:
    """A compiled function of theta and row indices that draws random numbers inside."""

    @quick_graphs()
    def __init__(
        self,
        latent_model: "LatentModel",
        expression: Callable[..., list[TensorVariable]],
        n_rows: int,
        rng: np.random.Generator,
        compile_kwargs: dict[str, Any] | None,
        extra: Sequence[TensorVariable] = (),
    ):
        kwargs = dict(compile_kwargs or {})
        # A parameter out of its range then gives zero density instead of an exception.
        mode = get_mode(kwargs.pop("mode", None)).including("local_remove_check_parameter")
        # Moved out of the scan, t * theta for all temperatures at once may need far more memory.
        mode = mode.excluding("scan_push_out_seq")
        self.backend = backend_of(mode)
        source = latent_model.source
        k = len(source.vars)
        inputs = [v.type(v.name) for v in source.inputs]
        inputs[:k] = [
            TensorType(v.dtype, shape)(v.name)
            for v, shape in zip(source.vars, source.shapes, strict=True)
        ]
        inputs[k] = pt.tensor("rows", shape=(n_rows,), dtype="int64")
        generator = random_generator_type("rng")
        stream = NoiseStream(generator)
        outputs = expression(Batch(source, n_rows, inputs[:k], inputs[k:]), stream, *extra)
        self.function = pytensor.function(
            [*inputs, *extra, pytensor.In(generator, mutable=True, borrow=True)],
            [*outputs, pytensor.Out(stream.rng, borrow=True)],
            mode=with_cheap_calls(mode),
            on_unused_input="ignore",
            **kwargs,
        )
        self.function.trust_input = True
        self.rng = self.backend.generator(rng)

    def put(self, data: Sequence[np.ndarray]) -> None:
        """Put the data (N / n, arrays, extra inputs) on the backend once for all calls."""
        self.data = [self.backend.array(value) for value in data]

    def __call__(self, theta: Sequence[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
        """Evaluate the function."""
        with naming_a_remedy():
            *out, self.rng = self.function(*theta, rows, *self.data, self.rng)
        return [np.asarray(o) for o in out]


class FromPrior(Latents):
    """Latent variables drawn from their prior, whatever values they can take."""

    def __init__(self, vars):
        super().__init__(vars, n_samples=1)

    def draw(self, joint, state, stream):
        return LatentDraws([z[None] for z in joint.draw_prior(stream)], None, state, [])


@dataclass(frozen=True)
class LatentModel:
    """A model's joint density of data and latent variables, with global variables untransformed."""

    model: Model
    source: LatentGradientSource
    latents: Latents
    minibatch_dim: str | None

    @classmethod
    def of(
        cls,
        model: Model,
        latents,
        minibatch_dim: str | None,
        default: Callable[..., Latents] = Gibbs,
    ) -> "LatentModel":
        """Derive it from the model; ``default`` makes `Latents` from a list of variables."""
        latents = latents if isinstance(latents, Latents) else default(latents)
        names = [rv.name for rv in find_latents(model, latents.vars)]
        # The draws contain theta on its own scale.
        plain = remove_value_transforms(model, [v for v in model.free_RVs if v.name not in names])
        without = without_latents(plain, names)
        latents = copy.copy(latents)
        latents.vars = names
        source = latent_gradient_source(
            plain, without, without.value_vars, latents, batch_size=1, minibatch_dim=minibatch_dim
        )
        return cls(plain, source, latents, minibatch_dim)

    def data(self, new: Mapping[str, np.ndarray] | None) -> tuple[list[np.ndarray], int]:
        """Return N / n and the data, with new rows by name, and the number of rows."""
        if not isinstance(new, Mapping | None):
            raise ValueError(f"data={new!r} must be a dict of arrays with their names as keys.")
        axes = self.axes
        names = {array: self.name_of(array) for array in axes}
        for name in new or {}:
            if name not in names.values():
                known = ", ".join(f"'{n}'" for n in names.values())
                raise ValueError(f"data: the model has no array of rows '{name}'. It has: {known}.")
        values, lengths = [], {}
        for array, variable in self.source.data:
            value = array_value(array)
            if new is not None and array in axes:
                value = self._fitting(names[array], new, value, axes[array])
            if array in axes:
                lengths[names[array]] = value.shape[axes[array]]
            values.append(value.astype(variable.dtype, copy=False))
        if len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise ValueError(f"data: the numbers of rows {lengths} must be equal and positive.")
        n_rows = next(iter(lengths.values()))
        IndexCheck(self.source)(values, [n_rows])
        scale = np.asarray(1, dtype=pytensor.config.floatX)
        return [scale, *values], n_rows

    @staticmethod
    def _fitting(name, new, own, axis) -> np.ndarray:
        if name not in new:
            raise ValueError(f"data: new rows of '{name}' are needed too: add them to data=.")
        value = np.asarray(new[name])
        if value.ndim != own.ndim or any(
            n != m for a, (n, m) in enumerate(zip(value.shape, own.shape, strict=True)) if a != axis
        ):
            raise ValueError(
                f"data: '{name}' has the shape {value.shape}, but {own.shape} in the model: only "
                f"the length of axis {axis}, the number of rows, may differ."
            )
        if value.dtype.kind not in "biuf":
            raise ValueError(f"data: '{name}' has the type {value.dtype}: it must have numbers.")
        refuse_nan_in(f"data: '{name}'", value)
        if own.dtype.kind != "f":
            changed = value.astype(own.dtype) != value
            if changed.any():
                raise ValueError(
                    f"data: '{name}' has the value {value[changed].flat[0]}, which its type in the "
                    f"model, {own.dtype}, cannot hold: pass whole numbers within its range."
                )
        return value

    @cached_property
    def axes(self) -> dict[Array, int]:
        """The axis of rows of each array that has rows."""
        latents = find_latents(self.model, self.latents.vars)
        row_axis = find_row_axis(self.model, self.minibatch_dim, latents)
        axes = {array: sliced_axis(self.model, array, row_axis) for array, _ in self.source.data}
        return {array: axis for array, axis in axes.items() if axis is not None}

    def observed_with(self, array: Array) -> TensorVariable | None:
        """Return the observed variable whose data are in an array, if any."""
        for rv in self.model.observed_RVs:
            if observed_array(self.model, rv) is array:
                return rv
        return None

    def name_of(self, array: Array) -> str:
        """Return an array's name for the user: that of its pm.Data or of the observed variable."""
        rv = None if isinstance(array, SharedVariable) else self.observed_with(array)
        name = array.name if rv is None else rv.name
        return name or f"(unnamed array of shape {array_value(array).shape}: wrap it in pm.Data)"


@dataclass(frozen=True)
class Thetas:
    """Posterior draws of the global variables."""

    values: list[np.ndarray]
    """One array per variable, with leading axes chain and draw."""
    coords: dict[str, np.ndarray]

    @classmethod
    def of(cls, latent_model: LatentModel, draws: Draws) -> "Thetas":
        """Take the draws from a DataTree, its posterior group, or one point."""
        if isinstance(draws, xr.DataTree):
            draws = draws["posterior"].to_dataset()
        names = [v.name for v in latent_model.source.vars]
        for name in names:
            if name not in draws:
                raise ValueError(
                    f"draws: there is no '{name}'. All free variables except the latent ones are "
                    f"needed: {', '.join(names)}."
                )
        if isinstance(draws, xr.Dataset):
            arrays = [draws[name].transpose("chain", "draw", ...).to_numpy() for name in names]
            coords = {dim: draws[dim].to_numpy() for dim in ("chain", "draw")}
        else:
            arrays = [np.asarray(draws[name])[None, None] for name in names]
            coords = {"chain": np.arange(1), "draw": np.arange(1)}
        for name, array, shape in zip(names, arrays, latent_model.source.shapes, strict=True):
            if array.shape[2:] != shape:
                raise ValueError(
                    f"draws: '{name}' has the shape {array.shape[2:]}, but {shape} in the model. "
                    "Pass draws of this model."
                )
            bad = np.argwhere(~np.isfinite(array))
            if len(bad):
                raise ValueError(
                    f"draws: '{name}' has the value {array[tuple(bad[0])]} in draw {bad[0][1]} of "
                    f"chain {bad[0][0]}. Pass finite draws."
                )
        dtypes = [v.dtype for v in latent_model.source.vars]
        return cls([a.astype(d) for a, d in zip(arrays, dtypes, strict=True)], coords)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of chains and draws."""
        return len(self.coords["chain"]), len(self.coords["draw"])

    def at(self, draw: tuple[int, ...]) -> list[np.ndarray]:
        """Return one value per variable."""
        return [array[draw] for array in self.values]
