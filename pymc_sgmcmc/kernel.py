"""What all chains of a step share: the updates, compiled once, and the data on the backend."""

import os
from typing import Any
from zlib import crc32

import numpy as np
import pytensor
from pymc.blocking import PointType
from pymc.model import Model
from pytensor.compile.mode import Mode, get_mode
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import issparse

from pymc_sgmcmc.algorithm import Algorithm
from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.backends.compile_time import compile_lock
from pymc_sgmcmc.backends.software_prefetch import CACHED
from pymc_sgmcmc.batches.prefetched import prefetching_pays
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.gradients.data_check import IndexCheck, check_shapes, shapes_of_data
from pymc_sgmcmc.gradients.metric import Metric, split_flat
from pymc_sgmcmc.gradients.source import GradientSource, Rows, check_batch_size
from pymc_sgmcmc.loop import Loop
from pymc_sgmcmc.schedules import Schedule, step_sizes


class Kernel:
    """An algorithm's updates on a gradient source, and the number of updates per draw.

    Pickles contain neither compiled code nor copies of the data; `load_data` and `compile` recreate
    them.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        source: GradientSource,
        algorithm: Algorithm,
        schedule: Schedule,
        thin: int,
        replacement: bool,
        compile_kwargs: dict[str, Any],
        metric: Metric | None = None,
        updates_per_batch: int = 1,
    ):
        self.name = name
        self.model = model
        self.source = source
        self.algorithm = algorithm
        self.schedule = schedule
        self.thin = thin
        self.replacement = replacement
        self.compile_kwargs = compile_kwargs
        self.metric = metric
        self.updates_per_batch = updates_per_batch
        self.row_copies: np.ndarray | None = None
        """Number of times each row is in the urn that batches are drawn from; None means once."""
        self.friction: np.ndarray | None = None
        """Flat thermostats at the start of a chain; None leaves the algorithm's own start."""
        self.data_checksum: int | None = None
        """Checksum of the data from which a control variate's anchor was computed."""
        self.statistics = (*algorithm.statistics, *source.statistics)
        self.averaged = ("gradient_norm", *source.statistics)
        """Statistics that are means over a draw's updates; the others are from its last update."""
        self.n_elements = sum(int(np.prod(shape)) for shape in source.shapes)
        self._moved, self._held = (
            [(v.name, np.dtype(v.dtype)) for v in vars] for vars in (source.vars, source.others)
        )
        self._process = os.getpid()
        self._shapes = shapes_of_data(source)
        self._index_check: IndexCheck | None = None
        self.loop: Loop | None = None

    def __getstate__(self):
        on_backend = ("loop", "backend", "constants", "scaling")
        left_out = (*on_backend, "groups_of_rows", "whole_groups", "streamed_groups", "urn")
        kept = {k: v for k, v in self.__dict__.items() if k not in left_out}
        return kept | {"_index_check": None}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._process = os.getpid()
        self.loop = None

    @property
    def mode(self) -> Mode:
        """The requested compilation mode."""
        with compile_lock:
            return get_mode(self.compile_kwargs.get("mode"))

    @property
    def index_check(self) -> IndexCheck:
        """Check that indices in the data are within range."""
        if self._index_check is None:
            self._index_check = IndexCheck(self.source)
        return self._index_check

    def load_data(self) -> None:
        """Put the current data on the backend, or raise an error if it no longer fits."""
        backend = backend_of(self.mode)
        if not backend.forks and os.getpid() != self._process:
            raise RuntimeError(
                "A JAX step cannot run in a forked process: JAX's threads do not survive a fork, "
                "and it would hang. Pass mp_ctx='forkserver' (or 'spawn'), or cores=1, to "
                "pm.sample."
            )
        self.backend = backend
        if self.data_checksum not in (None, self.checksum()):
            raise ValueError(
                f"The data have changed since {self.name} was adapted to them, and its control "
                "variate has the old data's gradient. Make a new step."
            )
        self.source.check_data()
        for rows in self.source.rows:
            check_batch_size(rows.batch_size, rows.n_rows)
        values = [array_value(array) for array, _ in self.source.data]
        self.index_check(values, [rows.n_rows for rows in self.source.rows])
        check_shapes(self.source, self.model, self._shapes)
        floatX = pytensor.config.floatX
        scales = [np.asarray(r.n_rows / r.batch_size, dtype=floatX) for r in self.source.rows]
        data = [array_value(array) for array, _ in self.source.data]
        self.constants = [backend.array(c) for c in [*scales, *data]]
        self.groups_of_rows = self.source.groups_of_rows()
        self.whole_groups = self.source.whole_groups(self.groups_of_rows)
        self.streamed_groups = self.source.streamed_groups()
        self.load_adaptation()
        self.places: dict[Any, int] = {}
        """Position of each array of the data among the constants, by its name and by the variable
        that represents it in the source's expressions."""
        for k, (array, variable) in enumerate(self.source.data, start=len(scales)):
            self.places |= {array.name: k, variable: k}
        first = self.source.rows[0] if self.source.rows else None
        batches_per_epoch = first.n_rows / first.batch_size if first else 1.0
        if self.whole_groups is not None:
            batches_per_epoch = self.whole_groups.n_batches
        self.updates_per_epoch = self.updates_per_batch * batches_per_epoch

    def checksum(self) -> int:
        """Return a checksum of the model's data, without what adaptation has added."""
        total = 0
        for array in self.source.model_data:
            value = array_value(array)
            dense = np.ascontiguousarray(value.data if issparse(value) else value)
            total = crc32(dense.view(np.uint8).ravel(), total)
        return total

    def set_row_copies(self, copies: np.ndarray | None) -> None:
        """Draw rows by weight: row i is ``copies[i]`` times in the urn, with weight 1 / (N q_i)."""
        [rows] = self.source.rows
        assert rows.weights is not None
        weights = np.ones(rows.n_rows)
        if copies is not None:
            weights = copies.sum() / (len(copies) * copies)
        rows.weights.set_value(weights.astype(rows.weights.dtype))
        self.row_copies = copies

    def load_adaptation(self) -> None:
        """Put the metric's current arrays on the backend, and fill the urn of row numbers."""
        copies = self.row_copies
        self.urn = None if copies is None else np.repeat(np.arange(len(copies)), copies)
        arrays = [] if self.metric is None else self.metric.arrays
        self.scaling = [self.backend.array(a) for a in arrays]

    def tables(self, rows: Rows) -> dict[TensorVariable, np.ndarray]:
        """Return the data whose rows should be fetched ahead of the calls, if any."""
        if self.backend.has_accelerator:
            return {}
        # On the CPU this does not copy, even for JAX arrays.
        tables = {v: np.asarray(self.constants[self.places[v]]) for v in self.source.tables(rows)}
        return tables if prefetching_pays(tables) else {}

    def compile(self, state_like: dict[str, list[np.ndarray]], by_number: bool = True) -> None:
        """Compile the updates unless this process has done so; ``by_number``: they look rows up."""
        if self.loop is not None:
            return
        mode = self.mode
        if not (by_number and any(array.nbytes > CACHED for array in self.constants)):
            mode = mode.excluding("software_prefetch")  # it would cost more than it saves
        kwargs = self.compile_kwargs | {"mode": mode}
        self.loop = Loop(self.source, self.algorithm, self.metric, state_like, kwargs)

    def initial_state(self, theta: list, rng: np.random.Generator) -> dict[str, list]:
        """Draw the initial states of the algorithm and the source from ``rng``."""
        metric = self.metric
        z = theta if metric is None else metric.start([t.dtype for t in theta])
        own = self.algorithm.init(z, rng)
        thermostats = self.algorithm.thermostats
        if self.friction is not None and thermostats is not None:
            own[thermostats] = _shaped(self.friction, own[thermostats])
        return own | self.source.init(rng)

    def step_sizes(self, first: int, n_updates: int) -> np.ndarray:
        """Step sizes of consecutive updates."""
        return step_sizes(self.schedule, first, n_updates, self.updates_per_epoch)

    def split(self, point: PointType) -> tuple[list, list]:
        """Split a point into the sampled variables and what stays fixed in a compiled call."""
        # JAX's compiled calls take NumPy arrays over ten times faster than `jax.numpy` converts
        # them.
        theta = [np.asarray(point[name], dtype) for name, dtype in self._moved]
        others = [np.asarray(point[name], dtype) for name, dtype in self._held]
        return theta, [*others, *self.scaling]

    def checked_theta(self, point: PointType) -> list:
        """Return the sampled variables of a point, or an error if one has another shape."""
        theta, _ = self.split(point)
        for (name, _), value, shape in zip(self._moved, theta, self.source.shapes, strict=True):
            if value.shape != shape:
                raise ValueError(
                    f"'{name}' has the shape {value.shape}, but {shape} when the step was made: if "
                    "new data has changed it, make a new step; otherwise correct the start."
                )
        return theta

    def moved(self, theta: list) -> PointType:
        """Return the sampled variables as part of a point."""
        as_numpy = self.backend.as_numpy
        return {name: as_numpy(t) for (name, _), t in zip(self._moved, theta, strict=True)}


def _shaped(flat: np.ndarray, like: list[np.ndarray]) -> list[np.ndarray]:
    """Cut a flat vector into arrays like others; their mean where there is only one number."""
    if len(like) == 1 and like[0].size == 1:
        return [np.full_like(like[0], flat.mean())]
    parts = split_flat(flat, [a.shape for a in like])
    return [part.astype(a.dtype) for part, a in zip(parts, like, strict=True)]
