"""Gibbs chains that start where they ended when their rows were last in a batch.

They do for each row's latent variables what Tieleman (2008) does for the negative phase of
Boltzmann machines: theta moves little between two visits, so a row's last z is nearly a draw given
the present theta, and few sweeps of burn-in suffice.
"""

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.algorithm import State, Tensors
from pymc_sgmcmc.latents.joint import Joint, LatentVariable

STATE_NAMES = ("last_latents", "visited")
"""The last z of each row, and whether the row has been in a batch yet."""


def initial_state(joint: Joint) -> dict[str, list]:
    """Return the state before any visit, with a z of shape (N, *shape) for each variable."""
    last = [np.zeros((joint.n_data, *v.shape), _smallest_type(v)) for v in joint.variables]
    return {"last_latents": last, "visited": [np.zeros(joint.n_data, bool)]}


def continued(joint: Joint, state: State, start: Tensors) -> tuple[Tensors, TensorVariable]:
    """Return the last z of the batch's rows, or ``start`` at a first visit, and which rows are new.

    The z have the given shapes (rows, *shape); the flags have the shape (rows,).
    """
    rows = _rows(joint)
    new_rows = ~state["visited"][0][rows]
    starts = [
        pt.switch(
            pt.expand_dims(new_rows, list(range(1, first.ndim))), first, z[rows].astype(first.dtype)
        )
        for first, z in zip(start, state["last_latents"], strict=True)
    ]
    return starts, new_rows


def with_ends(joint: Joint, state: State, ends: Tensors) -> State:
    """Keep the z at which the chains of the batch's rows ended."""
    rows = _rows(joint)
    [visited] = state["visited"]
    last = [
        pt.set_subtensor(z[rows], end.astype(z.dtype))
        for z, end in zip(state["last_latents"], ends, strict=True)
    ]
    return {"last_latents": last, "visited": [pt.set_subtensor(visited[rows], np.array(True))]}


def _rows(joint: Joint) -> TensorVariable:
    [rows] = joint.evaluate([joint.rows])
    return rows


def _smallest_type(variable: LatentVariable) -> np.dtype:
    """Return the smallest type, in bytes, that holds the known values of a variable."""
    if variable.support is None:
        return np.dtype(variable.dtype)
    low, high = int(variable.support.min()), int(variable.support.max())
    return np.min_scalar_type(min(low, -1 - high))
