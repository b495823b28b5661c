"""One compiled call: many updates of any sampler, on any backend, in one PyTensor scan."""

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import get_mode
from pytensor.scan.basic import scan
from pytensor.tensor.random.type import random_generator_type
from pytensor.tensor.type import TensorType

from pymc_sgmcmc.algorithm import Algorithm
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.gradients.source import GradientSource
from pymc_sgmcmc.noise import NoiseStream

DIVERGENCE_LIMIT = 1e15
"""An update has diverged where the sum of theta (on the unconstrained scale) exceeds this, or the
sum of the gradients' norms its square."""


class Outcome(NamedTuple):
    """What a compiled call returns."""

    theta: list
    state: Any
    """Lists of arrays by name, or all of them in one list."""
    rng: Any
    potential: Any
    """Estimate of -log posterior from the last batch, a scalar: at the final theta, or where the
    last gradient was taken if the source is costly."""
    squared_gradient: Any
    """Squared norm of each variable's gradient at each update, shape (k, number of variables)."""
    per_update: list
    """Shape (k,) each: norm of the whole gradient, then what the source's `statistics` name. They
    are not summed here: a draw's mean must not depend on how its updates are split into calls."""
    checksum: Any
    """A scalar that is finite if theta, gradients, diagnostics and potential are, and the former
    below `DIVERGENCE_LIMIT`."""
    diagnostics: list
    """Scalars of the final state, named by the algorithm's `statistics`."""


def first_nonfinite(squared_gradient: Any, theta: Sequence) -> tuple[int, int]:
    """Find what a call whose checksum is not finite met first.

    Parameters
    ----------
    squared_gradient, theta : arrays
        As in an `Outcome`.

    Returns
    -------
    variable : int
        Its number; that after the last stands for the log posterior.
    update : int
        Its number in the call.
    """
    bad = ~np.isfinite(np.asarray(squared_gradient))
    if bad.any():
        at = int(np.argmax(bad.any(axis=1)))
        return int(np.argmax(bad[at])), at
    # the log posterior, if all variables are finite
    finite = [*(bool(np.isfinite(np.asarray(t)).all()) for t in theta), False]
    return int(np.argmin(finite)), len(bad) - 1


class Loop:
    """The compiled updates of one algorithm on one gradient source.

    The scan's length is that of the step sizes it is given; memory does not grow with it, but for
    a scalar an update and variable. Data, state and random generator are explicit inputs, so on
    JAX they stay on the device.

    Parameters
    ----------
    source : GradientSource
    algorithm : Algorithm
    state_like : dict of lists of arrays
        An example of the algorithm's state and the source's: names, shapes and types.
    compile_kwargs : dict
        Arguments of `pytensor.function`, for example ``{"mode": "JAX"}``.
    """

    def __init__(
        self,
        source: GradientSource,
        algorithm: Algorithm,
        state_like: dict[str, list[np.ndarray]],
        compile_kwargs: dict[str, Any],
    ):
        self.n_vars = len(source.vars)
        self.n_per_update = 1 + len(source.statistics)
        self.layout = {name: len(arrays) for name, arrays in state_like.items()}
        ends = dict(zip(self.layout, accumulate(self.layout.values()), strict=True))
        self._parts = {name: slice(end - self.layout[name], end) for name, end in ends.items()}
        floatX = pytensor.config.floatX
        h = pt.tensor("h", shape=(None, *algorithm.step_size_shape), dtype=floatX)
        rows = [pt.tensor(shape=(None, r.batch_size), dtype="int64") for r in source.rows]
        theta = [
            TensorType(v.dtype, shape)(v.name)
            for v, shape in zip(source.vars, source.shapes, strict=True)
        ]
        state = [
            pt.tensor(name, shape=a.shape, dtype=a.dtype)
            for name, arrays in state_like.items()
            for a in map(np.asarray, arrays)
        ]
        constants = [c.type(c.name) for c in source.constants]
        rng = random_generator_type("rng")

        def one_update(h, k, *args):
            take = iter(args).__next__
            old_theta = [take() for _ in source.vars]
            old_state = [take() for _ in range(sum(self.layout.values()))]
            stream = NoiseStream(take())
            batch = [take()[k] for _ in rows]
            constants = [take() for _ in source.constants]
            state = self.named(old_state)
            own = {name: state[name] for name in source.state_names}
            evaluations = []

            def gradient(theta):
                evaluations.append(source.at(theta, batch, constants, own, stream))
                own.update(evaluations[-1].state)
                return evaluations[-1]

            def noise(like=None):
                return stream.normals_like(old_theta if like is None else like)

            sampler_state = {name: s for name, s in state.items() if name not in own}
            new_theta, new_state = algorithm.update(old_theta, sampler_state, gradient, h, noise)
            new_state |= own
            flat = [s for name in self.layout for s in new_state[name]]
            new = [
                n.astype(o.dtype)
                for n, o in zip([*new_theta, *flat], [*old_theta, *old_state], strict=True)
            ]
            last = evaluations[-1]
            squares = [pt.sum(g * g) for g in last.total]
            norm = pt.sqrt(reduce(pt.add, squares))
            potential = [last.potential] if source.is_costly else []
            return [k + 1, *new, stream.rng, pt.stack(squares), norm, *potential, *last.diagnostics]

        n_own = len(source.statistics) + source.is_costly
        outputs = scan(
            one_update,
            # JAX wants to know the number of steps: it is that of the only sequence. The rows are
            # looked up by a counter instead.
            sequences=[h],
            outputs_info=[
                pt.constant(0, dtype="int64"),
                *theta,
                *state,
                rng,
                *[None] * (2 + n_own),
            ],
            non_sequences=[*rows, *constants],
            strict=True,
            return_updates=False,
        )
        _, *moving, next_rng, squared, gradient_norms = outputs[: len(outputs) - n_own]
        moving = [m[-1] for m in moving]
        final_state = self.named(moving[self.n_vars :])
        own_outputs = outputs[len(outputs) - n_own :]
        stream = NoiseStream(next_rng)
        if source.is_costly:
            potential = own_outputs.pop(0)[-1]
        else:
            own = {name: final_state[name] for name in source.state_names}
            last_batch = [r[-1] for r in rows]
            evaluation = source.at(moving[: self.n_vars], last_batch, constants, own, stream)
            potential = evaluation.potential
        diagnostics = algorithm.diagnostics(final_state)
        means = [d.mean() for d in own_outputs]
        total = pt.add(*(m.sum() for m in moving[: self.n_vars]), *diagnostics, *means, 0.0)
        good = pt.and_(pt.abs(total) < DIVERGENCE_LIMIT, gradient_norms.sum() < DIVERGENCE_LIMIT**2)
        good = pt.and_(good, pt.abs(potential) < np.inf)  # or theta has no density
        checksum = pt.switch(good, total, np.nan)
        # A parameter out of its range (a step too large) must not raise: the update is seen to be
        # non-finite, and the draw is undone.
        mode = get_mode(compile_kwargs.get("mode")).including("local_remove_check_parameter")
        self.mode = with_cheap_calls(mode)
        kwargs = {name: value for name, value in compile_kwargs.items() if name != "mode"}
        self.function = pytensor.function(
            # The generator is advanced in place: copying one costs as much as many updates.
            # Borrowed on the way out too, for JAX cannot copy one.
            [h, *rows, *theta, *state, pytensor.In(rng, mutable=True, borrow=True), *constants],
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

    def named(self, flat: list) -> dict[str, list]:
        """Arrays of a state in one list, by name."""
        return {name: flat[part] for name, part in self._parts.items()}

    def __call__(self, h, rows, theta, state, rng, constants) -> Outcome:
        """Run ``len(h)`` updates."""
        flat = [array for arrays in state.values() for array in arrays]
        outcome = self.outcome(self.function(h, *rows, *theta, *flat, rng, *constants))
        return outcome._replace(state=self.named(outcome.state))

    def outcome(self, out: Sequence) -> Outcome:
        """Name what the compiled function returns; the state stays a list."""
        n_state = sum(self.layout.values())
        theta, state = list(out[: self.n_vars]), list(out[self.n_vars : self.n_vars + n_state])
        rng, potential, squared, checksum, *rest = out[self.n_vars + n_state :]
        per_update, diagnostics = rest[: self.n_per_update], rest[self.n_per_update :]
        return Outcome(theta, state, rng, potential, squared, per_update, checksum, diagnostics)
