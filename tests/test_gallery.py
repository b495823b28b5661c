"""Forms of models that the galleries have: accepted with an exact gradient, or refused and why.

Everything is evaluated in Python: nothing is compiled.
"""

import re

import numpy as np
import pymc as pm
import pytensor
import pytest
from gallery.forms import ACCEPTED, REFUSED

import gallery  # noqa: F401  (its modules fill the two tables)
from pymc_sgmcmc.gradients.arrays import PYTHON, array_value
from pymc_sgmcmc.gradients.row_axis import find_row_axis
from pymc_sgmcmc.gradients.source import gradient_source
from pymc_sgmcmc.variables import continuous

RTOL = 1e-9
"""Both sides are sums of the same numbers, in float64, in another order and form: rounding makes
them differ by some 1e-16 times the number of operations (at most some thousands for these rows)
and the condition of a sum, 1e-12 or so of the largest gradient. What is wrong in a batch is wrong
by a part of one row or more, 1e-3 and up."""


def source_of(form):
    """The model of a form, and the gradient source that a step would make of it."""
    model = form.build()
    return model, gradient_source(model, continuous(model, None), **form.options)


def two_points(model):
    """Off the initial one, on the unconstrained scale, with a finite gradient."""
    rng = np.random.default_rng(3)
    start = model.initial_point()
    return [
        {name: value + rng.normal(scale=0.3, size=np.shape(value)) for name, value in start.items()}
        for _ in range(2)
    ]


def batches(n_rows, batch_size):
    """Disjoint, in random order, all rows."""
    assert n_rows % batch_size == 0
    return np.random.default_rng(4).permutation(n_rows).reshape(-1, batch_size)


def average_of_batches(source, points, scale=None, shifted=None):
    """Mean of the batches' gradients of the log posterior at each point, one array a variable.

    ``scale`` in place of N / n and an array that is ``shifted`` by a row are faults.
    """
    function = pytensor.function(
        source.inputs, [*source.prior, *source.likelihood], mode=PYTHON, on_unused_input="ignore"
    )
    [rows] = source.rows
    n_over_batch = rows.n_rows / rows.batch_size if scale is None else scale
    data = [
        np.roll(array_value(array), 1, axis=0) if array is shifted else array_value(array)
        for array, _ in source.data
    ]
    averages = []
    for point in points:
        theta = [point[v.name] for v in source.vars]
        results = [
            function(*theta, batch, np.asarray(n_over_batch, rows.scale.dtype), *data)
            for batch in batches(rows.n_rows, rows.batch_size)
        ]
        means = [np.mean(values, axis=0) for values in zip(*results, strict=True)]
        k = len(theta)
        averages.append([p + lik for p, lik in zip(means[:k], means[k:], strict=True)])
    return averages


def gradients_of_all_rows(model, points, names):
    """The model's own gradient, as NUTS has it."""
    values = {v.name: v for v in model.value_vars}
    vars = [values[name] for name in names]
    gradient = pytensor.gradient.grad(model.logp(), vars)
    function = pytensor.function(vars, gradient, mode=PYTHON, on_unused_input="ignore")
    return [function(*(point[name] for name in names)) for point in points]


def differences(source, averages, expected):
    """Variables whose gradient differs, with the largest difference in units of the tolerance."""
    found = {}
    for ours, full in zip(averages, expected, strict=True):
        largest = max(np.abs(g).max() for g in full)
        for v, mine, right in zip(source.vars, ours, full, strict=True):
            assert np.shape(mine) == np.shape(right)
            error = np.abs(mine - right) / (RTOL * (np.abs(right) + largest))
            if not (error <= 1).all():  # NaN is different too
                found[v.name] = float(np.max(error))
    return found


def assert_exact(form, model, source):
    whole = form.whole() if form.whole else model
    points, names = two_points(model), [v.name for v in source.vars]
    expected = gradients_of_all_rows(whole, points, names)
    assert all(np.isfinite(g).all() for full in expected for g in full)
    assert not differences(source, average_of_batches(source, points), expected)


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    """The average over batches is the model's own gradient; the rows are those meant."""
    form = ACCEPTED[name]
    model, source = source_of(form)
    assert [rows.n_rows for rows in source.rows] == [form.n_rows]
    if form.whole is None:  # else the model itself says which rows
        assert find_row_axis(model, form.options["minibatch_dim"]).name == form.dim
    assert source.vars == model.value_vars
    assert_exact(form, model, source)
    if form.new_data is not None:  # another number of rows, the same step
        data = dict(form.new_data())
        coords = data.pop("coords")
        pm.set_data(data, model=model, coords=coords)
        [length] = {len(labels) for labels in coords.values()}
        assert [rows.n_rows for rows in source.rows] == [length] != [form.n_rows]
        assert_exact(form, model, source)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """By name, with the cause and a remedy."""
    form = REFUSED[name]
    with pytest.raises(form.error) as caught:
        source_of(form)
    message = str(caught.value)
    assert f"'{form.variable}'" in message
    assert re.search(form.cause, message)
    assert re.search(form.remedy, message)


def test_a_wrong_gradient_is_seen():
    """Without N / n, or with one array a row further than the others, the averages differ."""
    form = ACCEPTED["hierarchies.radon_unpooled"]
    model, source = source_of(form)
    points, names = two_points(model), [v.name for v in source.vars]
    expected = gradients_of_all_rows(model, points, names)
    assert not differences(source, average_of_batches(source, points), expected)
    assert differences(source, average_of_batches(source, points, scale=1.0), expected)
    for array, _ in source.data:
        averages = average_of_batches(source, points, shifted=array)
        assert min(differences(source, averages, expected).values()) > 1e4, array.name


def test_enough_forms():
    forms = [*ACCEPTED, *REFUSED]
    n_bambi = sum(name.startswith("bambi") for name in forms)
    assert n_bambi >= 25
    assert len(forms) - n_bambi >= 60
