"""Self-check: does the model written for the groups of a batch equal the model itself?"""

from collections.abc import Mapping, Sequence

import numpy as np
import pymc as pm
import pytensor
from pymc.blocking import PointType
from pymc.logprob.utils import ParameterValueError
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import without_code
from pymc_sgmcmc.gradients.arrays import AS_WRITTEN, python_function
from pymc_sgmcmc.gradients.batch_check import DISTANCES, near
from pymc_sgmcmc.gradients.batch_terms import Term
from pymc_sgmcmc.gradients.local_model import Column, LocalModel, NotLocal


def check_local(
    model: pm.Model,
    local: LocalModel,
    terms: Sequence[Term],
    data: Mapping[TensorVariable, np.ndarray],
    rows: TensorVariable,
    batch: np.ndarray,
    groups: Mapping[TensorVariable, np.ndarray],
    start: PointType,
) -> None:
    """Compare log probabilities of rows and of groups with the model's own, near the start.

    ``data`` maps placeholders to arrays, ``batch`` are their rows for ``rows``, and ``groups`` are
    the groups of the batch's rows for each index. If log probabilities differ, `NotLocal` names the
    variables that are not local.
    """
    rng = np.random.default_rng(20242)
    everything = [v.value for v in local.variables]
    columns = local.columns
    # A batch of whole groups touches fewer groups than it has rows.
    most = min([c.slots for c in columns if c.slots < c.n_groups], default=len(batch))
    batch = batch[:most]
    inputs = [*model.value_vars, *(v.slots for v in local.variables), rows, *data]
    for column in columns:
        inputs += [column.groups, column.places]
    dense = [term.logp for term in terms]
    for v in local.variables:
        [logp] = model.logp(vars=[model.values_to_rvs[v.value]], sum=False)
        dense.append(logp.sum(axis=[a for a in range(logp.ndim) if a != v.axis]))
    outputs = [*local.rows, *local.priors, *dense]
    with without_code(), np.errstate(all="ignore"):
        try:
            function = python_function(inputs, outputs, AS_WRITTEN)
            touched = {c: _touched(c, groups[c.index][:most]) for c in columns}
            for distance in DISTANCES:
                given = near(start, model.value_vars, rng, distance)
                point = dict(zip((v.name for v in model.value_vars), given, strict=True))
                given += [
                    np.take(point[v.value.name], touched[v.column][0], axis=v.axis)
                    for v in local.variables
                ]
                given += [batch, *data.values()]
                for column in columns:
                    given += touched[column]
                try:
                    found = function(*given)
                except ParameterValueError:
                    continue
                if all(np.isfinite(f).all() for f in found):
                    break
            else:
                raise NotLocal(everything, "it has no finite density near the start")
        except (ValueError, IndexError, AssertionError, TypeError, NotImplementedError) as error:
            reason = str(error).strip().partition("\n")[0] or repr(error)
            what = f"its terms cannot be written for some groups ({reason})"
            raise NotLocal(everything, what) from error
    k = len(local.rows)
    tolerance = 1e-3 if pytensor.config.floatX == "float32" else 1e-7
    for term, ours, models in zip(terms, found[:k], found[k + len(local.priors) :], strict=False):
        if not np.allclose(ours, models, rtol=tolerance, atol=tolerance):
            raise NotLocal(
                everything, f"rows of '{term.name}' depend on groups other than their own"
            )
    own = found[k : k + len(local.priors)]
    for v, ours, models in zip(local.variables, own, found[2 * k + len(own) :], strict=True):
        expected = models[touched[v.column][0]]
        if np.shape(ours) != expected.shape or not np.allclose(
            ours, expected, rtol=tolerance, atol=tolerance
        ):
            raise NotLocal([v.value], "its prior is not independent from group to group")


def _touched(column: Column, groups_of_rows: np.ndarray) -> list[np.ndarray]:
    """Return the groups in the slots and the place of each row."""
    groups, places = np.unique(groups_of_rows % column.n_groups, return_inverse=True)
    return [np.resize(groups, column.slots).astype(np.int64), places.astype(np.int64)]
