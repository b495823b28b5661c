"""Forms of models that the galleries have: accepted with an exact gradient, or refused and why.

Everything is evaluated in Python: nothing is compiled.
"""

import gc
import re

import gallery  # noqa: F401  (its modules fill the two tables)
import numpy as np
import pymc as pm
import pytensor
import pytest
from gallery.forms import ACCEPTED, REFUSED
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.basic import dfs_rewriter

from pymc_sgmcmc.gradients.arrays import array_value, narrow
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.gradients.rows_in_batches import find_row_axes
from pymc_sgmcmc.variables import continuous

RTOL = 1e-9
"""Both sides are sums of the same numbers, in float64, in another order and form: rounding makes
them differ by some 1e-16 times the number of operations (at most some thousands for these rows)
and the condition of a sum, 1e-12 or so of the largest gradient. What is wrong in a batch is wrong
by a part of one row or more, 1e-3 and up."""


AS_WRITTEN = Mode(linker="py", optimizer=None).register(
    (dfs_rewriter(narrow, ignore_newtrees=False), 100)
)
"""Graphs are evaluated as they stand but for NumPy's limit of operands: these run a few times."""


@pytest.fixture(autouse=True, scope="module")
def _quick_graphs():
    """Python also where PyMC evaluates, no record of where each node was made, little garbage
    collection.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(200_000, 20, 1000)
    with pytensor.config.change_flags(mode="FAST_COMPILE", traceback__limit=0):
        yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def source_of(form):
    """The model of a form, the gradient source that a step would make of it, and its start."""
    model = form.build()
    start = model.initial_point()
    return (
        model,
        gradient_source(model, continuous(model, None), start=start, **form.options),
        start,
    )


def two_points(start):
    """Off the initial one, on the unconstrained scale."""
    rng = np.random.default_rng(3)
    return [
        {name: value + rng.normal(scale=0.3, size=np.shape(value)) for name, value in start.items()}
        for _ in range(2)
    ]


def batches(n_rows, batch_size):
    """Disjoint, in random order, all rows."""
    assert n_rows % batch_size == 0
    return np.random.default_rng(4).permutation(n_rows).reshape(-1, batch_size)


class BatchGradient:
    """The gradient of the log posterior that a source has for a batch: prior plus likelihood."""

    def __init__(self, source):
        self.source = source
        outputs = [*source.prior, *source.likelihood]
        self.function = pytensor.function(
            source.inputs, outputs, mode=AS_WRITTEN, on_unused_input="ignore"
        )

    def average(self, points, scale=None, shifted=None):
        """Mean over disjoint batches of all rows, at each point, one array per variable.

        ``scale`` in place of N / n, and an array that is ``shifted`` by a row, are faults.
        """
        [rows] = self.source.rows
        n_over_batch = rows.n_rows / rows.batch_size if scale is None else scale
        constants = [np.asarray(n_over_batch, rows.scale.dtype)]
        for array, _ in self.source.data:
            value = array_value(array)
            constants.append(np.roll(value, 1, axis=0) if array is shifted else value)
        averages = []
        for point in points:
            theta = [point[v.name] for v in self.source.vars]
            results = [
                self.function(*theta, batch, *constants)
                for batch in batches(rows.n_rows, rows.batch_size)
            ]
            means = [np.mean(values, axis=0) for values in zip(*results, strict=True)]
            k = len(theta)
            averages.append([p + lik for p, lik in zip(means[:k], means[k:], strict=True)])
        return averages


class FullGradient:
    """The gradient of the model's own log posterior for all rows, as NUTS has it."""

    def __init__(self, model):
        vars = model.value_vars
        self.names = [v.name for v in vars]
        gradient = pytensor.gradient.grad(model.logp(), vars)
        self.function = pytensor.function(vars, gradient, mode=AS_WRITTEN)

    def at(self, points):
        """At each point, one array per variable."""
        return [self.function(*(point[name] for name in self.names)) for point in points]


def differences(source, averages, expected):
    """Variables whose gradient differs, with the largest difference in units of the tolerance."""
    found = {}
    for ours, full in zip(averages, expected, strict=True):
        largest = max(np.abs(g).max() for g in full)
        for v, mine, right in zip(source.vars, ours, full, strict=True):
            assert np.shape(mine) == np.shape(right)
            error = np.abs(mine - right) / (RTOL * (np.abs(right) + largest))
            if not (error <= 1).all():  # NaN is different too
                found[v.name] = max(float(np.max(error)), found.get(v.name, 0))
    return found


def assert_exact(of_batch, of_all, points):
    expected = of_all.at(points)
    assert all(np.isfinite(g).all() for full in expected for g in full)
    assert not differences(of_batch.source, of_batch.average(points), expected)


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    """The average over batches is the model's own gradient; the rows are those meant."""
    form = ACCEPTED[name]
    model, source, start = source_of(form)
    assert [rows.n_rows for rows in source.rows] == [form.n_rows]
    if form.whole is None:  # else the model itself says which rows
        axes = find_row_axes(model, form.options["minibatch_dim"])
        assert tuple(axis.name for axis in axes) == form.dims
    assert [v.name for v in source.vars] == [v.name for v in model.value_vars]
    of_batch, of_all = BatchGradient(source), FullGradient(form.whole() if form.whole else model)
    assert of_all.names == [v.name for v in source.vars]
    points = two_points(start)
    assert_exact(of_batch, of_all, points)
    if form.new_data is not None:  # another number of rows, the same step
        data = dict(form.new_data())
        coords = data.pop("coords")
        pm.set_data(data, model=model, coords=coords)
        [length] = {len(labels) for labels in coords.values()}
        assert [rows.n_rows for rows in source.rows] == [length] != [form.n_rows]
        assert_exact(of_batch, of_all, points)


@pytest.mark.filterwarnings("ignore:Data in .* contains missing values")
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
    """Without N / n, or with one array shifted by a row, the averages differ."""
    model, source, start = source_of(ACCEPTED["hierarchies.radon_unpooled"])
    of_batch, points = BatchGradient(source), two_points(start)
    expected = FullGradient(model).at(points)
    assert not differences(source, of_batch.average(points), expected)
    assert differences(source, of_batch.average(points, scale=1.0), expected)
    names = []
    for array, _ in source.data:
        if array_value(array).ndim:
            found = differences(source, of_batch.average(points, shifted=array), expected)
            assert max(found.values()) > 1e4, array.name
            names.append(array.name)
    assert set(names) == {"floor", "county", "target"}


def test_enough_forms():
    forms = [*ACCEPTED, *REFUSED]
    n_bambi = sum(name.startswith("bambi") for name in forms)
    assert n_bambi >= 25
    assert len(forms) - n_bambi >= 60
