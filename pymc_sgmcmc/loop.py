"""One compiled call: many updates of any sampler, on any backend, in one PyTensor scan."""

from collections.abc import Sequence
from itertools import accumulate
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import get_mode
from pytensor.link.basic import JITLinker
from pytensor.scan.basic import scan
from pytensor.tensor.random.type import random_generator_type
from pytensor.tensor.type import TensorType

from pymc_sgmcmc.algorithm import Algorithm
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.gradients.metric import Metric
from pymc_sgmcmc.gradients.source import GradientSource
from pymc_sgmcmc.group_records import GroupRecords
from pymc_sgmcmc.local_slots import Touched, gathered, masked, n_touched
from pymc_sgmcmc.noise import NoiseStream
from pymc_sgmcmc.pymc_internals import jitted

DIVERGENCE_LIMIT = 1e15
"""Limit beyond which an update counts as diverged: the sum of theta (on the unconstrained scale)
exceeds it, or the sum of the gradients' norms exceeds its square."""


class Outcome(NamedTuple):
    """What a compiled call returns."""

    theta: list
    state: Any
    """Lists of arrays by name, or all arrays in one list."""
    rng: Any
    potential: Any
    """Estimate of -log posterior from the last batch, a scalar, at the final theta or, if the
    source is costly, at the point of the last gradient."""
    squared_gradient: Any
    """Squared norm of each variable's gradient at each update, shape (k, number of variables)."""
    per_update: list
    """Norm of the whole gradient, then what the source's `statistics` name, each of shape (k,).
    They are not summed here, because a draw's mean must not depend on how its updates are split
    into calls."""
    checksum: Any
    """A scalar: finite if theta, gradients, diagnostics and potential are finite and no update has
    diverged (`DIVERGENCE_LIMIT`)."""
    diagnostics: list
    """Scalars of the final state, named by the algorithm's `statistics`."""


def failure_of(outcome: Outcome) -> tuple[int, int] | None:
    """Wait for a call, and return its first non-finite variable and update, or None."""
    if isfinite(np.asarray(outcome.checksum)):
        return None
    squared, theta = np.asarray(outcome.squared_gradient), map(np.asarray, outcome.theta)
    variable, update = first_nonfinite(squared, list(theta), np)
    return int(variable), int(update)


def first_nonfinite(squared_gradient: Any, theta: list, xp: Any) -> tuple[Any, Any]:
    """Find the first non-finite variable and update of a call whose checksum is not finite.

    The number after the last variable stands for the log posterior; ``xp`` is `numpy` or
    `jax.numpy`.
    """
    bad = ~xp.isfinite(squared_gradient)
    seen = bad.any()
    update = xp.where(seen, xp.argmax(bad.any(axis=1)), len(bad) - 1)
    # the last entry stands for the log posterior
    finite = xp.stack([*(xp.isfinite(t).all() for t in theta), xp.asarray(False)])
    variable = xp.where(seen, xp.argmax(bad[update]), xp.argmin(finite))
    return variable, update


def _variables_of(
    arrays: Sequence, positions: Sequence[int], shapes: Sequence[tuple]
) -> list[int | None]:
    """Return the variable that each array of a state is shaped like, or None for each array."""
    own = [shapes[i] for i in positions]
    if [np.shape(a) for a in arrays] == own:
        return list(positions)
    return [None] * len(arrays)


class Loop:
    """The compiled updates of one algorithm on one gradient source, one for each step size.

    Data, state and generator are explicit inputs, so that on JAX they stay on the device;
    ``state_like`` is an example of the state. An update evaluates ``n_gradients`` gradients.
    """

    @quick_graphs()
    def __init__(
        self,
        source: GradientSource,
        algorithm: Algorithm,
        metric: Metric | None,
        state_like: dict[str, list[np.ndarray]],
        compile_kwargs: dict[str, Any],
    ):
        self.n_vars = len(source.vars)
        self.n_per_update = 1 + len(source.statistics)
        self.layout = {name: len(arrays) for name, arrays in state_like.items()}
        ends = dict(zip(self.layout, accumulate(self.layout.values()), strict=True))
        self._parts = {name: slice(end - self.layout[name], end) for name, end in ends.items()}
        z_shapes = source.shapes if metric is None else metric.z_shapes
        self._variable_of = {
            name: _variables_of(arrays, algorithm.positions(name, len(z_shapes)), z_shapes)
            for name, arrays in state_like.items()
        }
        floatX = pytensor.config.floatX
        h = pt.tensor("h", shape=(None, *algorithm.step_size_shape), dtype=floatX)
        rows = [pt.tensor(shape=(None, n), dtype=dtype) for n, dtype in source.batch_types]
        theta = [
            TensorType(v.dtype, shape)(v.name)
            for v, shape in zip(source.vars, source.shapes, strict=True)
        ]
        state = [
            pt.tensor(name, shape=a.shape, dtype=a.dtype)
            for name, arrays in state_like.items()
            for a in map(np.asarray, arrays)
        ]
        scaling = [] if metric is None else metric.inputs
        own_constants = [c.type(c.name) for c in source.constants]
        rng = random_generator_type("rng")

        def touched_by(batch):
            """Return the groups that a batch touches: of z, and of theta, state and scaling."""
            touched = source.touched(batch)
            if metric is None:
                return touched, [*touched, *self.of_state(touched)]
            of_z = metric.z_touched(touched)
            return of_z, [*touched, *self.of_state(of_z), *metric.inputs_touched(touched)]

        n_moving = len(theta) + len(state)
        arrays = [*theta, *state, *scaling]
        records = GroupRecords(arrays, touched_by([r[0] for r in rows])[1], n_moving)
        carried, read = records.packed(arrays)

        def one_update(h, k, *args):
            take = iter(args).__next__
            moving = [take() for _ in carried]
            stream = NoiseStream(take())
            batch = [take()[k] for _ in rows]
            constants = [take() for _ in source.constants]
            touched_z, touched = touched_by(batch)
            slots = records.gathered(moving, [take() for _ in read], touched)
            old, scaling_now = slots[:n_moving], slots[n_moving:]
            old_theta, old_state = old[: self.n_vars], old[self.n_vars :]
            state = self.named(masked(old_state, touched[self.n_vars : n_moving]))
            own = {name: state[name] for name in source.state_names}
            evaluations = []

            def position(z):
                if metric is None:
                    return z
                shifts = metric.to_theta(z, scaling_now)
                return [t + s for t, s in zip(old_theta, shifts, strict=True)]

            def gradient(z):
                evaluations.append(source.at(position(z), batch, constants, own, stream))
                own.update(evaluations[-1].state)
                last = evaluations[-1]
                return last if metric is None else metric.gradient(last, scaling_now)

            # z is the variable in which the algorithm works.
            z = old_theta if metric is None else metric.zeros(old_theta)

            def noise(like=None):
                like = z if like is None else like
                of = dict(zip(z, touched_z, strict=True))
                return masked(stream.normals_like(like), [of.get(t) for t in like])

            sampler_state = {name: s for name, s in state.items() if name not in own}
            more = {}
            if algorithm.counts_elements and any(touched_z):
                more["n_elements"] = n_touched(z, touched_z)
            new_z, new_state = algorithm.update(z, sampler_state, gradient, h, noise, **more)
            self.n_gradients = len(evaluations)
            if not evaluations:
                raise ValueError(
                    f"{type(algorithm).__name__} evaluates no gradient, so it would not draw from "
                    "the posterior: call `gradient` in its update, or give its splitting an O."
                )
            new_theta = position(new_z)
            new_state |= own
            flat = [s for name in self.layout for s in new_state[name]]
            new = [n.astype(o.dtype) for n, o in zip([*new_theta, *flat], old, strict=True)]
            new = records.scattered(moving, new, touched)
            last = evaluations[-1]
            squares = pt.stack([pt.sum(g * g) for g in last.total])
            potential = [last.potential] if source.is_costly else []
            return [k + 1, *new, stream.rng, squares, *potential, *last.diagnostics]

        n_own = len(source.statistics) + source.is_costly
        outputs = scan(
            one_update,
            # JAX needs the number of steps, and takes it from the only sequence. The rows are
            # looked up with a counter instead.
            sequences=[h],
            outputs_info=[
                pt.constant(0, dtype="int64"),
                *carried,
                rng,
                *[None] * (1 + n_own),
            ],
            non_sequences=[*rows, *own_constants, *read],
            strict=True,
            return_updates=False,
        )
        _, *moving, next_rng, squared = outputs[: len(outputs) - n_own]
        gradient_norms = pt.sqrt(squared.sum(axis=1))
        moving = records.unpacked([m[-1] for m in moving])
        final_state = self.named(moving[self.n_vars :])
        own_outputs = outputs[len(outputs) - n_own :]
        stream = NoiseStream(next_rng)
        if source.is_costly:
            potential = own_outputs.pop(0)[-1]
        else:
            own = {name: final_state[name] for name in source.state_names}
            last_batch = [r[-1] for r in rows]
            last_theta = gathered(moving[: self.n_vars], source.touched(last_batch))
            evaluation = source.at(last_theta, last_batch, own_constants, own, stream)
            potential = evaluation.potential
        # From a copy of the generator, because the next call must not depend on where this one
        # ends.
        drawn = source.with_prior_draws(moving[: self.n_vars], own_constants, stream.copy())
        moving = [*drawn, *moving[self.n_vars :]]
        diagnostics = algorithm.diagnostics(final_state)
        means = [d.mean() for d in own_outputs]
        total = pt.add(*(m.sum() for m in moving[: self.n_vars]), *diagnostics, *means, 0.0)
        good = pt.and_(pt.abs(total) < DIVERGENCE_LIMIT, gradient_norms.sum() < DIVERGENCE_LIMIT**2)
        good = pt.and_(good, pt.abs(potential) < np.inf)  # otherwise theta has no density
        checksum = pt.switch(good, total, np.nan)
        # A parameter out of its range (after too large a step) must not raise an error: the update
        # is recognised as non-finite, and the draw is undone.
        mode = get_mode(compile_kwargs.get("mode")).including("local_remove_check_parameter")
        # PyTensor turns x[i].set(x[i] + a + b) into x[i].inc(a), for example with a single slot.
        mode = mode.excluding("local_set_to_inc_subtensor")
        self.mode = with_cheap_calls(mode)
        kwargs = {name: value for name, value in compile_kwargs.items() if name != "mode"}
        self.function = pytensor.function(
            # The generator is advanced in place, since copying it costs as much as many updates.
            # The output is borrowed too, because JAX cannot copy a generator.
            [
                h,
                *rows,
                *theta,
                *state,
                pytensor.In(rng, mutable=True, borrow=True),
                *own_constants,
                *scaling,
            ],
            [
                *moving,
                pytensor.Out(stream.rng, borrow=True),
                potential,
                squared,
                checksum,
                gradient_norms,
                *own_outputs,
                *diagnostics,
            ],
            mode=self.mode,
            on_unused_input="ignore",
            **kwargs,
        )
        self.function.trust_input = True
        # PyTensor's wrapper holds the arguments of one call, so threads cannot share it.
        in_threads = isinstance(self.mode.linker, JITLinker)
        self._call = jitted(self.function) if in_threads else self.function

    def of_state(self, touched: list[Touched | None]) -> list[Touched | None]:
        """Return the groups that a batch moves in each array of the state, as `touched` does."""
        of_state: list[Touched | None] = []
        for variables in self._variable_of.values():
            of_state += [None if i is None else touched[i] for i in variables]
        return of_state

    def named(self, flat: list) -> dict[str, list]:
        """Return the arrays of a state, given in one list, by name."""
        return {name: flat[part] for name, part in self._parts.items()}

    def __call__(self, h, rows, theta, state, rng, constants) -> Outcome:
        """Run ``len(h)`` updates."""
        flat = [array for arrays in state.values() for array in arrays]
        outcome = self.outcome(self._call(h, *rows, *theta, *flat, rng, *constants))
        return outcome._replace(state=self.named(outcome.state))

    def outcome(self, out: Sequence) -> Outcome:
        """Name the outputs of the compiled function; the state stays a list."""
        n_state = sum(self.layout.values())
        theta, state = list(out[: self.n_vars]), list(out[self.n_vars : self.n_vars + n_state])
        rng, potential, squared, checksum, *rest = out[self.n_vars + n_state :]
        per_update, diagnostics = rest[: self.n_per_update], rest[self.n_per_update :]
        return Outcome(theta, state, rng, potential, squared, per_update, checksum, diagnostics)
