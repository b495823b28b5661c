"""Whole groups from a stream: which rows, how often, with what weights, and what is refused."""

from functools import cache, partial

import numpy as np
import pymc as pm
import pytest

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation.local_gradients import LocalGradients
from pymc_sgmcmc.batches.group_places import GroupPlaces
from pymc_sgmcmc.batches.group_windows import FILLER, GroupWindows, group_windows
from pymc_sgmcmc.batches.repeated import RepeatedBatches
from pymc_sgmcmc.batches.streamed import StreamedBatches
from pymc_sgmcmc.gradients.arrays import PYTHON

G, BATCH, WINDOW = 150, 20, 300


def sorted_groups():
    """Groups of 0 to 12 rows, one of 70 (in parts), one of 700 (more than a window has)."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 13, G)
    sizes[[5, 7]] = 70, 700
    order = rng.permutation(G)
    return sizes, np.repeat(order, sizes[order])


SIZES, GROUP = sorted_groups()
N = len(GROUP)
COLUMNS = {"group": GROUP, "row": np.arange(N), "y": np.sin(np.arange(N))}


class Loader:
    """The rows in batches of 37; ``rows`` picks those of each pass."""

    n_rows = N

    def __init__(self, columns=COLUMNS, rows=lambda n_pass: slice(None)):
        self.columns, self.rows, self.n_passes = columns, rows, 0

    def __iter__(self):
        some = {name: a[self.rows(self.n_passes)] for name, a in self.columns.items()}
        self.n_passes += 1
        for k in range(0, len(some["y"]), 37):
            yield {name: a[k : k + 37] for name, a in some.items()}


SOURCES = {"arrays": COLUMNS, "loader": Loader()}


@cache
def windows_of(kind, batch_size=BATCH):
    options = {"chunk": 8} if kind == "arrays" else {}
    data = sgm.StreamedData(SOURCES[kind], window=WINDOW, **options)
    places = GroupPlaces.counted(np.array_split(GROUP, 9), G)
    return data, GroupWindows(places, data, batch_size, "float64")


def stream(kind, seed=1, replacement=False, batch_size=BATCH):
    data, groups = windows_of(kind, batch_size)
    windows = partial(
        group_windows,
        data=data,
        groups=groups,
        groups_of=lambda rows: rows["group"],
        replacement=replacement,
    )
    rng = np.random.default_rng(seed)
    return StreamedBatches(data, batch_size, rng, replacement, windows=windows)


def batches_of(taken, batch_size=BATCH):
    """The rows of each batch, without those that fill it up; which repeat the first."""
    rows, filler = (taken[name].reshape(-1, batch_size) for name in ("row", FILLER))
    for own, left_over in zip(rows, filler, strict=True):
        assert not left_over[0]
        assert (own[left_over] == own[0]).all()
    return [own[~left_over] for own, left_over in zip(rows, filler, strict=True)]


# ---- batches -------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [BATCH, 7, 300])
@pytest.mark.parametrize("kind", SOURCES)
def test_epochs_have_each_row_once_and_groups_whole(kind, batch_size):
    _, groups = windows_of(kind, batch_size)
    batches = stream(kind, batch_size=batch_size)
    orders, deals, contents = set(), set(), set()
    for _ in range(4):
        taken = batches.take(groups.n_batches)
        np.testing.assert_array_equal(taken["y"], COLUMNS["y"][taken["row"]])
        epoch = batches_of(taken, batch_size)
        np.testing.assert_array_equal(np.sort(np.concatenate(epoch)), np.arange(N))
        for rows in epoch:
            found, m = np.unique(GROUP[rows], return_counts=True)
            assert len(found) <= groups.slots
            torn = m < SIZES[found]
            assert set(found[torn]) <= set(np.flatnonzero(batch_size < SIZES))
            # equal parts, some of which may be together
            part = SIZES[found[torn]] / -(-SIZES[found[torn]] // batch_size)
            assert (m[torn] >= np.floor(part)).all()
        orders.add(tuple(rows[0] for rows in epoch))
        deals.add(frozenset(min(rows[GROUP[rows] == 5], default=-1) for rows in epoch))
        contents.add(frozenset(frozenset(GROUP[rows]) for rows in epoch))
    assert len(orders) == 4 or batch_size == WINDOW  # windows of one or two batches
    assert len(contents) == 1
    assert len(deals) == (4 if batch_size < 70 else 1)


@pytest.mark.parametrize("kind", SOURCES)
def test_windows(kind):
    """No larger than asked for; an array's are from all over it, and in another order each time."""
    data, groups = windows_of(kind)
    orders = set()
    windows = group_windows(
        np.random.default_rng(0), data=data, groups=groups, groups_of=lambda rows: rows["group"]
    )
    for _ in range(3):
        epoch = [next(windows) for _ in range(groups.n_windows)]
        read = [w.rows["row"][~w.rows[FILLER]] for w in epoch]
        assert max(map(len, read)) <= WINDOW
        assert groups.n_windows <= 1.2 * N / WINDOW + 1
        if kind == "loader":  # runs of consecutive rows
            np.testing.assert_array_equal(np.sort(np.concatenate(read)), np.arange(N))
            assert all(np.ptp(rows) == len(rows) - 1 for rows in read)
        else:  # all but the last, which has what is left over
            full = [rows for rows in read if len(rows) > WINDOW / 2]
            assert min(np.ptp(rows) for rows in full if not (GROUP[rows] == 7).any()) > N / 2
        orders.add(tuple(rows.min() for rows in read))
    assert len(orders) == (1 if kind == "loader" else 3)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_restored_stream_goes_on(kind, replacement):
    _, groups = windows_of(kind)
    K = groups.n_batches
    whole, parts, other = (stream(kind, seed, replacement) for seed in (1, 1, 2))
    expected = whole.take(2 * K + 3)
    found = [parts.take(n) for n in (1, K, 5, K - 3)]
    for name, values in expected.items():
        joined = np.concatenate([part[name] for part in found])
        np.testing.assert_array_equal(joined, values)
    other.state = parts.state
    repeated = RepeatedBatches(stream(kind, 3, replacement), 2)
    repeated.batches.state = parts.state
    expected = batches_of(parts.take(K))
    assert [*map(list, batches_of(other.take(K)))] == [*map(list, expected)]
    twice = batches_of(repeated.take(2 * K))
    assert [*map(list, twice)] == [list(rows) for rows in expected for _ in range(2)]


def test_replacement_draws_the_batches_of_a_window_independently():
    """Each comes once per epoch on average, with the sd of a binomial number."""
    _, groups = windows_of("arrays")
    epochs = 300
    batches = stream("arrays", replacement=True)
    count = {}
    for _ in range(epochs):
        for rows in batches_of(batches.take(groups.n_batches)):
            key = frozenset(GROUP[rows]) - {5, 7}  # several batches have only parts of these
            count[key] = count.get(key, 0) + 1
    del count[frozenset()]
    away = (np.array(list(count.values())) - epochs) / np.sqrt(epochs)
    assert np.abs(away).max() < 4.5
    assert 0.6 < away.std() < 1.2  # below 1: windows have few batches


# ---- weights and gradients -----------------------------------------------------------------

EMPTY = np.flatnonzero(SIZES == 0)
DISTRICT = np.arange(G) // 10
"""Of each group."""


def model_of(rows, nested=False):
    with pm.Model() as model:
        group = pm.Data("group", rows["group"], dims="obs")
        y = pm.Data("y", rows["y"], dims="obs")
        mu, t = pm.Normal("mu"), pm.Normal("t")
        a = pm.Normal("a", mu, pm.math.exp(t), shape=G)
        mean = a[group]
        if nested:
            district = pm.Data("district", rows["district"], dims="obs")
            mean = mean + pm.Normal("d", t, 1, shape=15)[district]
        pm.Normal("lik", mean, 2, observed=y, dims="obs")
    return model


def step_of(source, batch_size=BATCH, nested=False, window=WINDOW, **options):
    data = sgm.StreamedData(source, window=window)
    options = {"local": ["a", "d"] if nested else ["a"], "batches": "groups"} | options
    if nested:
        data = sgm.StreamedData(source | {"district": DISTRICT[source["group"]]}, window=window)
    return sgm.MSGNHT_S(
        model=model_of(data.head(), nested),
        step_size=0.1,
        batch_size=batch_size,
        data=data,
        **options,
    )


def used(columns):
    return {name: a for name, a in columns.items() if name != "row"}


def by_district(columns):
    """The same rows, sorted by district."""
    order = np.argsort(DISTRICT[GROUP], kind="stable")
    return {name: a[order] for name, a in used(columns).items()}


@pytest.mark.slow(3)
@pytest.mark.parametrize(("batch_size", "nested"), [(BATCH, False), (300, False), (BATCH, True)])
def test_gradients_are_exact_on_average_over_an_epoch(batch_size, nested):
    """For shared variables over all batches, for each group's over those that have its rows.

    A group's own is the mean over its parts where these have the same number of rows; then it is
    exact whichever of its rows they have. Those of 700 rows are such parts.
    """
    columns = by_district(COLUMNS) if nested else used(COLUMNS)
    options = {"compile_kwargs": {"mode": PYTHON}, "replacement": False}
    step = step_of(columns, batch_size, nested, **options)
    whole = {"district": DISTRICT[columns["group"]]} if nested else {}
    model = model_of(columns | whole, nested)
    rng = np.random.default_rng(0)
    point = {v.name: rng.normal(size=np.shape(model.initial_point()[v.name])) for v in step.vars}
    expected = {
        v.name: gradient
        for v, gradient in zip(
            model.value_vars,
            np.split(
                model.compile_dlogp()(point),
                np.cumsum([point[v.name].size for v in model.value_vars])[:-1],
            ),
            strict=True,
        )
    }
    g = LocalGradients(step.kernel, point)
    step.setup_chain(np.random.default_rng(1), 0, 0)
    K = step.kernel.whole_groups.n_batches
    rows, constants = step.chain.batches_of_call(K)
    total = {name: np.zeros_like(value) for name, value in point.items()}
    count = {name: np.zeros_like(value) for name, value in point.items()}
    for k in range(K):
        batch = [a[k] for a in rows]
        indices = [()] * len(step.vars)
        used_slots = {}
        for i, variable in enumerate(g.variables):
            if variable is not None:
                column = step.source.columns.index(variable.column)
                indices[i] = (batch[1 + 3 * column],)
                used_slots[i] = batch[3 + 3 * column] > 0
        both = zip(step.vars, indices, strict=True)
        theta = [np.asarray(point[v.name][at]) for v, at in both]
        found = g._function(*theta, *batch, *constants)
        for i, (v, at) in enumerate(zip(step.vars, indices, strict=True)):
            gradient = found[i] + found[i + len(step.vars)]
            np.add.at(total[v.name], at, gradient)
            np.add.at(count[v.name], at, used_slots.get(i, 1))
    for name, value in expected.items():
        with_rows = count[name] > 0
        mean = np.divide(total[name], count[name], where=with_rows, out=np.zeros_like(total[name]))
        assert with_rows.sum() == (np.count_nonzero(SIZES) if name == "a" else with_rows.size)
        if name in ("mu", "t"):  # the prior of groups without rows is not in it
            a, mu, t = point["a"][EMPTY], point["mu"], point["t"]
            away = (a - mu) / np.exp(t)
            value = value - np.sum(away / np.exp(t) if name == "mu" else away**2 - 1)
        exact = with_rows
        if name == "d":  # a district's parts are not all equal
            exact = np.bincount(DISTRICT, SIZES) <= batch_size
        elif name == "a":
            parts = -(-SIZES // batch_size)
            exact = with_rows & (SIZES % np.maximum(parts, 1) == 0)
            if nested:
                exact &= np.bincount(DISTRICT, SIZES)[DISTRICT] <= batch_size
            assert nested or exact[[5, 7]].any()
        np.testing.assert_allclose(
            mean[exact], np.reshape(value, mean.shape)[exact], rtol=1e-9, atol=1e-9, err_msg=name
        )


# ---- what is refused -----------------------------------------------------------------------


def test_places():
    places = GroupPlaces.counted([np.array([2, 2, 0]), np.array([0, 0, 2])], 4)
    assert places.sizes.tolist() == [3, 0, 3, 0]
    assert places.first.tolist() == [2, -1, 0, -1]
    assert places.scattered.tolist() == [2]


def test_scattered_groups_are_refused():
    rng = np.random.default_rng(0)
    mixed = {name: a[rng.permutation(N)] for name, a in used(COLUMNS).items()}
    with pytest.raises(ValueError, match=r"groups of 'group' do not: group .* Sort the data by 'g"):
        step_of(mixed)
    data = sgm.StreamedData(used(COLUMNS) | {"district": np.arange(N) % 15}, window=WINDOW)
    options = {"local": ["a", "d"], "batches": "groups", "data": data, "batch_size": BATCH}
    model = model_of(data.head(), nested=True)
    with pytest.raises(ValueError, match="those of 'a', 'd' are crossed"):
        sgm.MSGNHT_S(model=model, step_size=0.1, **options)


def one_row_changed(n_pass):
    rows = np.arange(N)
    if n_pass > 6:
        rows[[40, 41]] = rows[[900, 900]]
    return rows


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (one_row_changed, r"Row 40 of data= has the group \d+, but 7 when .*the same rows"),
        (lambda n_pass: slice(0, N if n_pass < 7 else N - 10), "ended after .* rows instead of"),
        (lambda n_pass: np.arange(N + (n_pass > 6)) % N, "yields more than the stated"),
    ],
)
def test_data_that_change_are_refused(rows, said):
    """The first passes check, count and begin; later ones differ."""
    step = step_of(Loader(used(COLUMNS), rows), compile_kwargs={"mode": PYTHON})

    def read():
        for _ in range(40):
            step.chain.batches_of_call(20)

    with pytest.raises(ValueError, match=said):
        read()
