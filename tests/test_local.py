"""Local variables: exact gradients, updates of touched groups alone, and posteriors."""

from itertools import combinations

import hierarchies
import numpy as np
import pytensor
import pytest
from hierarchies import LOCAL, N
from test_gradients import constants, evaluate, random_point

from pymc_sgmcmc.batches.touched import TouchedGroups
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.noise import NoiseStream

# ---- gradients -----------------------------------------------------------------------------


def local_gradients(model, names, batch_size, point):
    """Gradients of every possible batch: the whole shared ones, the sum and count of the local."""
    source = gradient_source(model, model.value_vars, batch_size=batch_size, local=names)
    variables = {v.value: v for v in source.variables}
    theta = source.of_batch.vars
    of_columns = [x for c in source.columns for x in (c.groups, c.places, c.weights)]
    batch = [source.rows[0].index, *of_columns]
    evaluation = source.at(theta, batch, source.constants, {}, NoiseStream(None))
    function = pytensor.function(
        [*theta, *batch, *source.constants],
        [evaluation.potential, *evaluation.total],
        mode=PYTHON,
        on_unused_input="ignore",
    )
    touched = [TouchedGroups(of_rows) for of_rows in source.groups_of_rows()]
    total = {v.name: np.zeros_like(point[v.name]) for v in source.vars}
    count = {v.name: np.zeros_like(point[v.name]) for v in source.vars}
    potentials = []
    for rows in combinations(range(N), batch_size):
        found = [a[0] for groups in touched for a in groups.of(np.array([rows]))]
        given, indices = [], []
        for v in source.vars:
            index = ...
            if v in variables:
                column = source.columns.index(variables[v].column)
                index = (slice(None),) * variables[v].axis + (found[3 * column],)
            indices.append(index)
            given.append(point[v.name][index])
        potential, *gradients = function(*given, np.array(rows), *found, *constants(source, point))
        potentials.append(potential)
        for v, index, gradient in zip(source.vars, indices, gradients, strict=True):
            np.add.at(total[v.name], index, gradient)
            if v in variables:
                used = found[3 * source.columns.index(variables[v].column) + 2] > 0
                others = [a for a in range(gradient.ndim) if a != variables[v].axis]
                used = np.expand_dims(used, others)
                assert not gradient[np.broadcast_to(~used, gradient.shape)].any()
                np.add.at(count[v.name], index, np.broadcast_to(used, gradient.shape))
            else:
                count[v.name] += 1
    return potentials, {name: total[name] / count[name] for name in total}


@pytest.mark.parametrize("batch_size", [1, 3, N])
@pytest.mark.parametrize("name", LOCAL)
def test_gradients_are_exact_on_average(name, batch_size):
    """Over all batches for shared variables, over those that touch it for each group's."""
    model = getattr(hierarchies, name)()
    point = random_point(model)
    potentials, gradients = local_gradients(model, LOCAL[name], batch_size, point)
    logp = model.logp()
    expected, *full = evaluate(model, [logp, *pytensor.grad(logp, model.value_vars)], point)
    np.testing.assert_allclose(-np.mean(potentials), expected, rtol=1e-9)
    for v, gradient in zip(model.value_vars, full, strict=True):
        np.testing.assert_allclose(
            gradients[v.name], gradient, rtol=1e-9, atol=1e-9, err_msg=v.name
        )
