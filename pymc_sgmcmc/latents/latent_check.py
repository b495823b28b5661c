"""Checks of latent variables: batches add up given one draw of them, and their support is fixed."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pymc as pm
from pymc.blocking import PointType
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import random_generator_type
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import without_code
from pymc_sgmcmc.gradients.arrays import Array, array_value, python_function
from pymc_sgmcmc.gradients.batch_check import (
    DISTANCES,
    batch_error,
    cannot_be_checked,
    compare,
    near,
    total_of,
)
from pymc_sgmcmc.gradients.rows_in_batches import RowAxis
from pymc_sgmcmc.latents.joint import Joint
from pymc_sgmcmc.noise import NoiseStream

MAX_ROWS_WITH_LATENTS = 200
"""Largest number of rows to check; if there are more, a random subset bounds the cost."""
REMEDY = (
    "Pass another minibatch_dim, or write the term so that its rows are independent given the "
    "parameters: latents= cannot integrate out chains or fields of variables."
)
DIVISIONS = 4
"""Number of ways in which the rows are divided, because with discrete variables a wrong sum may be
right by chance."""


def check_latent_terms(
    model: pm.Model,
    joint: Joint,
    data: Sequence[tuple[Array, TensorVariable]],
    row_axis: RowAxis,
    start: PointType,
) -> None:
    """Raise an error that names a term with latent variables whose batches do not add up.

    This is `check_terms` of `gradients/batch_check.py` for one draw of the latent variables from
    their prior, on at most `MAX_ROWS_WITH_LATENTS` rows taken as one batch, without rows that are
    impossible for that draw.
    """
    rng = np.random.default_rng(20240)
    n_rows = min(row_axis.length, MAX_ROWS_WITH_LATENTS)
    subset = rng.choice(row_axis.length, size=n_rows, replace=False)
    arrays = [np.asarray(array_value(array), dtype=v.dtype) for array, v in data]
    inputs = [*model.value_vars, joint.rows, *(variable for _, variable in data)]
    placeholders = [v.value for v in joint.variables]
    with without_code(), np.errstate(all="ignore"):
        generator = random_generator_type()
        prior = dataclasses.replace(joint, n_rows=n_rows).draw_prior(NoiseStream(generator))
        draw = python_function([generator, *inputs], prior)
        for term in joint.terms:
            batch = total_of([*placeholders, *inputs], term.logp)
            for distance in DISTANCES:
                point = near(start, model.value_vars, rng, distance)
                try:
                    z = draw(rng, *point, subset, *arrays)

                    def total(rows, z=z, point=point, batch=batch):
                        own = [v[rows] for v in z]
                        return float(batch(*own, *point, subset[rows], *arrays))

                    rows = _possible_rows(total, n_rows)
                    of_all = total(rows) if rows.size else np.nan
                    divisions = [_divided(rng.permutation(rows)) for _ in range(DIVISIONS)]
                    sums = [[total(piece) for piece in pieces] for pieces in divisions]
                except ParameterValueError:
                    continue
                except (ValueError, IndexError, AssertionError, TypeError) as error:
                    raise batch_error(term.name, row_axis, error, otherwise="") from error
                if np.isfinite([of_all, *itertools.chain(*sums)]).all():
                    for of_batches in sums:
                        compare(term.name, of_batches, of_all, row_axis, REMEDY)
                    break
            else:
                raise cannot_be_checked(term.name)


def _divided(rows: np.ndarray) -> list[np.ndarray]:
    """Divide rows into one, a few, and two larger batches.

    A single row shows terms that depend on all rows together, and the random order shows terms in
    which a row depends on the one before it.
    """
    ends = np.maximum.accumulate([1, 1 + len(rows) // 16, len(rows) // 3])
    return [piece for piece in np.split(rows, ends) if piece.size]


def _possible_rows(total: Callable[[np.ndarray], float], n_rows: int) -> np.ndarray:
    """Return the rows that are possible for a draw of the latent variables."""
    rows = np.arange(n_rows)
    if np.isfinite(total(rows)):
        return rows
    return rows[[bool(np.isfinite(total(rows[k : k + 1]))) for k in rows]]


def refuse_moving_support(model: pm.Model, latent: Variable, latents: Sequence[Variable]) -> None:
    """Raise an error for a latent variable whose support depends on a parameter.

    The gradient at a draw holds the draw fixed, so it misses how the edge of the support moves.
    """
    transform = model.rvs_to_transforms[latent]
    if transform is None:
        return
    backward = transform.backward(latent.type("unconstrained"), *latent.owner.inputs)
    parameters = set(model.free_RVs) - set(latents)
    for rv in ancestors([backward], blockers=latents):
        if rv in parameters:
            raise ValueError(
                f"The support of '{latent.name}' depends on '{rv.name}', and gradients given draws "
                f"of '{latent.name}' miss how its edge moves. Write it with a variable of fixed "
                f"support: where '{latent.name}' is uniform from 0 to '{rv.name}', for example, "
                f"as '{rv.name}' times a variable that is uniform from 0 to 1. Name that one in "
                "latents=."
            )
