"""Local variables: exact gradients, updates of touched groups alone, and posteriors."""

import copy
from functools import cache
from itertools import combinations, permutations, product
from types import SimpleNamespace
from typing import NamedTuple

import cloudpickle
import hierarchies
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from hierarchies import LOCAL, N
from scipy.special import digamma, polygamma
from test_gradients import constants, evaluate, random_point

import pymc_sgmcmc as sgm
from pymc_sgmcmc.batches.touched import TouchedGroups
from pymc_sgmcmc.chain import Chain
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.noise import NoiseStream
from tests.samplers import BACKENDS, UNCONSTRAINED

# ---- gradients -----------------------------------------------------------------------------


def every_batch(batch_size, whole):
    """All batches of rows; or of whole groups, whichever way the rows of a large one are dealt."""
    if whole is None:
        return np.array(list(combinations(range(N), batch_size)))
    large = []
    whole.order(SimpleNamespace(permutation=lambda rows: large.append(len(rows)) or rows))
    batches = []
    for orders in product(*(permutations(range(n)) for n in large)):
        take = iter(orders).__next__
        deal = SimpleNamespace(permutation=lambda rows, take=take: rows[list(take())])
        rows = np.empty((whole.n_batches, batch_size), dtype=np.int64)
        whole.fill(rows, np.arange(whole.n_batches), whole.order(deal))
        batches.append(rows)
    return np.concatenate(batches)


def local_gradients(model, names, batch_size, point, batches="rows"):
    """Gradients of every possible batch: the whole shared ones, the sum and count of the local."""
    source = gradient_source(
        model, model.value_vars, batch_size=batch_size, local=names, batches=batches
    )
    variables = {v.value: v for v in source.variables}
    theta = source.of_batch.vars
    of_columns = [x for c in source.columns for x in (c.groups, c.places, c.weights)]
    of_columns += [source.row_weights] if batches == "groups" else []
    batch = [source.rows[0].index, *of_columns]
    evaluation = source.at(theta, batch, source.constants, {}, NoiseStream(None))
    function = pytensor.function(
        [*theta, *batch, *source.constants],
        [evaluation.potential, *evaluation.total],
        mode=PYTHON,
        on_unused_input="ignore",
    )
    groups = source.groups_of_rows()
    whole = source.whole_groups(groups)
    touched = [TouchedGroups(of_rows, whole and whole.row_weight) for of_rows in groups]
    total = {v.name: np.zeros_like(point[v.name]) for v in source.vars}
    count = {v.name: np.zeros_like(point[v.name]) for v in source.vars}
    potentials = []
    for rows in every_batch(batch_size, whole):
        found = [a[0] for groups in touched for a in groups.of(rows[None])]
        found += [whole.weights(rows[None])[0]] if batches == "groups" else []
        given, indices = [], []
        for v in source.vars:
            index = ...
            if v in variables:
                column = source.columns.index(variables[v].column)
                index = (slice(None),) * variables[v].axis + (found[3 * column],)
            indices.append(index)
            given.append(point[v.name][index])
        potential, *gradients = function(*given, rows, *found, *constants(source, point))
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


@pytest.mark.slow(3)
@pytest.mark.parametrize(
    ("name", "batch_size", "batches"),
    [
        *((name, 3, "rows") for name in LOCAL),
        ("centred", 1, "rows"),
        ("crossed", N, "rows"),
        ("centred", 2, "groups"),
        ("transformed", 3, "groups"),
        ("lkj_noncentred", 3, "groups"),
        ("nested", 2, "groups"),
        ("nested", N, "groups"),
    ],
)
def test_gradients_are_exact_on_average(name, batch_size, batches):
    """Over all batches for shared variables, over those that touch it for each group's.

    Group 3 has three rows and a district four: in batches of 2 and 3 rows they come in parts.
    """
    model = getattr(hierarchies, name)()
    point = random_point(model)
    found = local_gradients(model, LOCAL[name], batch_size, point, batches)
    potentials, gradients = found
    logp = model.logp()
    expected, *full = evaluate(model, [logp, *pytensor.grad(logp, model.value_vars)], point)
    np.testing.assert_allclose(-np.mean(potentials), expected, rtol=1e-9)
    for v, gradient in zip(model.value_vars, full, strict=True):
        np.testing.assert_allclose(
            gradients[v.name], gradient, rtol=1e-9, atol=1e-9, err_msg=v.name
        )


def test_rows_of_another_likelihood_are_spread_over_all_groups():
    """Three of them beside 4 rows, or four beside 3: each row again, in turn."""
    model = hierarchies.two_likelihoods()
    names = LOCAL["two_likelihoods"]
    source = gradient_source(model, model.value_vars, batch_size=3, local=names)
    sizes = [groups.sizes.tolist() for groups in source.groups_of_rows()]
    assert sizes == [[2, 2, 3], [2, 5]]


# ---- updates -------------------------------------------------------------------------------


class GivenGradient(NamedTuple):
    total: list
    mean_likelihood: list


def gradient_by_hand(mu, alpha, rows):
    """Of `hierarchies.fixed_scales`, at the touched groups, written out with whole sums."""
    groups, size = hierarchies.GROUP, np.bincount(hierarchies.GROUP)
    touched = list(dict.fromkeys(groups[rows]))  # in the order in which they come
    g_mu, g_alpha, of_rows = -mu, -(alpha[touched] - mu) / 0.49, np.zeros(len(touched))
    for i in rows:
        j = touched.index(groups[i])
        m = np.sum(groups[rows] == groups[i])
        of_rows[j] += size[groups[i]] / m * (hierarchies.Y[i] - alpha[groups[i]])
        g_mu = g_mu + N / len(rows) / size[groups[i]] * (alpha[groups[i]] - mu) / 0.49
    return touched, GivenGradient([g_mu, g_alpha + of_rows], [np.zeros(()), of_rows / N])


# What is moved does not depend on the backend: all samplers in Python, one on each.
[OURS] = [s for s in UNCONSTRAINED if s.step is sgm.MSGNHT_S]
BATCHES = ((3, 5, 0), (4, 0, 3))


@pytest.mark.parametrize(
    ("sampler", "mode", "batches"),
    [
        *((s, PYTHON, BATCHES) for s in UNCONSTRAINED),
        *((OURS, mode, BATCHES) for mode in BACKENDS[:2]),
        (OURS, PYTHON, ((3,), (5,))),  # a single slot
    ],
    ids=lambda value: getattr(value, "name", str(value) if value is not PYTHON else "Python"),
)
def test_updates_are_the_papers_for_the_touched_groups(sampler, mode, batches, monkeypatch):
    """All others stay as they are, with momentum and thermostat; slots left over do nothing.

    Noise of 1 everywhere; two updates, by batches that touch two groups and one of four.
    """
    batches = np.array(batches)
    monkeypatch.setattr(NoiseStream, "normals_like", lambda _, like: [t * 0 + 1 for t in like])
    settings = {**sampler.settings, **({"gamma": False} if sampler.step is sgm.PSGLD else {})}
    step = sampler.step(
        step_size=0.1,
        batch_size=batches.shape[1],
        thin=2,
        local=["alpha"],
        model=hierarchies.fixed_scales(),
        compile_kwargs={"mode": mode},
        **settings,
    )
    monkeypatch.setattr(type(step.chain.batches[0]), "take", lambda _, n: batches[:n])
    point = {"mu": np.array(0.4), "alpha": np.array([0.3, -1.0, 0.9, -0.2])}
    step.setup_chain(np.random.default_rng(1), 0, 0)
    step.chain.begin(point)
    rng = np.random.default_rng(2)
    state = {name: [rng.normal(size=a.shape) for a in s] for name, s in step.sampler_state.items()}
    state |= {"V": [a**2 for a in state["V"]]} if "V" in state else {}
    step.chain.sampler_state = copy.deepcopy(state)
    moved, _ = step.step(point)

    mu, alpha = point["mu"], point["alpha"].copy()
    per_variable = [name for name, arrays in state.items() if len(arrays) == 2]
    for rows in batches:
        touched, _ = gradient_by_hand(mu, alpha, rows)
        own = copy.deepcopy(state)
        for name in per_variable:
            own[name][1] = own[name][1][touched]
        own = SimpleNamespace(**own)

        def gradient(theta, alpha=alpha, touched=touched, rows=rows):
            at = alpha.copy()
            at[touched] = theta[1]
            return gradient_by_hand(theta[0], at, rows)[1]

        ones = [[np.ones(()), np.ones(len(touched))]] * sampler.n_gradients
        theta = [mu, alpha[touched]]
        mu, alpha[touched] = sampler.reference(theta, own, *ones, 0.1, settings, gradient)
        for name, arrays in state.items():
            if name in per_variable:
                arrays[0], arrays[1][touched] = getattr(own, name)
            else:
                state[name] = getattr(own, name)
    np.testing.assert_allclose(moved["mu"], mu, rtol=1e-9)
    np.testing.assert_allclose(moved["alpha"], alpha, rtol=1e-9)
    for name, arrays in step.sampler_state.items():
        for ours, expected in zip(arrays, state[name], strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-9, err_msg=name)
    assert moved["alpha"][1] == point["alpha"][1]


@pytest.mark.slow(2)
def test_groups_move_as_their_samplers_do():
    """Two samplers on one gradient, here with equal settings and no noise, move like one."""
    paths = []
    for make in (
        lambda model, **o: sgm.MSGNHT_S(step_size=0.1, diffusion=0.0, model=model, **o),
        lambda model, **o: sgm.Groups(
            [
                sgm.MSGNHT_S.on([model["mu"]], step_size=0.1, diffusion=0.0),
                sgm.MSGNHT_S.on([model["alpha"]], step_size=0.1, diffusion=0.0),
            ],
            model=model,
            **o,
        ),
    ):
        model = hierarchies.fixed_scales()
        step = make(model, batch_size=3, thin=4, local=["alpha"], compile_kwargs={"mode": PYTHON})
        point = {"mu": np.array(0.4), "alpha": np.array([0.3, -1.0, 0.9, -0.2])}
        step.setup_chain(np.random.default_rng(1), 0, 0)
        step.chain.begin(point)
        names = list(step.sampler_state)
        step.chain.sampler_state = {
            name: [np.full(np.shape(a), 0.5) for a in arrays]
            for name, arrays in step.sampler_state.items()
        }
        assert len(names) == (2 if len(paths) == 0 else 4)
        paths.append(step.step(point)[0])
    for name in ("mu", "alpha"):
        np.testing.assert_allclose(paths[0][name], paths[1][name], rtol=1e-12)
    assert paths[0]["alpha"][0] != 0.3


COLUMNS = {"group": hierarchies.GROUP, "other": hierarchies.OTHER, "values": hierarchies.Y}


def step_of_containers(columns, streamed=False, **options):
    """Two indices; containers hold the rows, or two of them as placeholders for a stream."""
    held = {name: a[:2] if streamed else a for name, a in columns.items()}
    with pm.Model():
        at = {name: pm.Data(name, a, dims="obs") for name, a in held.items()}
        u = pm.Normal("u", pm.Normal("mu"), 1, shape=4)
        v = pm.Normal("v", 0, 1, shape=6)
        pm.Normal("y", u[at["group"]] + v[at["other"]], 1, observed=at["values"], dims="obs")
        data = sgm.StreamedData(columns, window=6) if streamed else None
        options = {"local": ["u", "v"], "data": data} | options
        return sgm.MSGNHT_S(step_size=0.1, batch_size=3, thin=2, **options)


def test_streamed_rows_move_the_same_groups(monkeypatch):
    """As rows in memory do, in the same batches; a pass through the stream counts the groups."""
    monkeypatch.setattr(NoiseStream, "normals_like", lambda _, like: [t * 0 + 1 for t in like])
    batches = np.array(BATCHES)
    rows = {False: batches, True: {name: a[batches.ravel()] for name, a in COLUMNS.items()}}
    point = {"mu": np.array(0.4), "u": np.linspace(-1, 1, 4), "v": np.linspace(1, 2, 6)}
    moved = {}
    for streamed in (False, True):
        step = step_of_containers(COLUMNS, streamed, compile_kwargs={"mode": PYTHON})
        taken = rows[streamed]
        monkeypatch.setattr(type(step.chain.batches[0]), "take", lambda _, n, taken=taken: taken)
        step.setup_chain(np.random.default_rng(1), 0, 0)
        moved[streamed] = step.step(point)[0]
    for name, values in moved[False].items():
        np.testing.assert_allclose(moved[True][name], values, rtol=1e-12, err_msg=name)
    assert np.flatnonzero(moved[True]["u"] != point["u"]).tolist() == [2, 3]
    # group 5 of v has no rows: drawn from its prior
    assert np.flatnonzero(moved[True]["v"] != point["v"]).tolist() == [0, 2, 3, 4, 5]


# ---- posteriors ----------------------------------------------------------------------------


@cache
def replicas(R):
    """Many copies of one hierarchy of 12 groups of 1 to 6 rows, and its exact moments."""
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(12), rng.integers(1, 7, 12))
    y = rng.normal(rng.normal(0.5, 0.8, 12)[groups], 1)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2, shape=R)
        log_tau = pm.Normal("log_tau", -0.2, 0.3, shape=R)
        alpha = pm.Normal("alpha", mu, pm.math.exp(log_tau), shape=(14, R))
        pm.Normal("y", alpha[groups], 1, observed=np.repeat(y[:, None], R, axis=1))
    # Given tau all is Gaussian: moments are means over a grid of log tau.
    design = np.hstack([np.zeros((len(y), 1)), np.eye(14)[groups]])
    weights, means, seconds = [], [], []
    for t in np.linspace(-1.6, 1.2, 400):
        to_mu = np.hstack([-np.ones((14, 1)), np.eye(14)])
        precision = design.T @ design + to_mu.T @ to_mu * np.exp(-2 * t)
        precision[0, 0] += 1 / 4
        covariance = np.linalg.inv(precision)
        mean = covariance @ design.T @ y
        log_p = -0.5 * ((t + 0.2) / 0.3) ** 2 - 14 * t
        log_p += 0.5 * np.linalg.slogdet(covariance)[1] + 0.5 * mean @ precision @ mean
        mean, covariance = np.append(mean, t), np.pad(covariance, (0, 1))
        weights.append(log_p)
        means.append(mean)
        seconds.append(covariance + np.outer(mean, mean))
    weights = np.exp(np.array(weights) - max(weights))
    mean, second = (np.average(a, axis=0, weights=weights) for a in (means, seconds))
    return model, mean, second - np.outer(mean, mean)


@pytest.mark.long
@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (sgm.MSGNHT_S, {"step_size": 0.03, "thin": 200}),
        (sgm.MSGNHT_S, {"step_size": 0.03, "thin": 400, "batches": "groups"}),
        (sgm.SGLD, {"step_size": 0.002, "thin": 600}),
    ],
    ids=["MSGNHT_S", "whole groups", "SGLD"],
)
def test_hierarchy_with_unknown_scale(sampler, options):
    """Means, sds and covariances of all, and groups without rows: by 400 copies of the model."""
    R = 400
    model, mean, covariance = replicas(R)
    step = sampler(
        batch_size=10,
        replacement=False,  # noise that all copies share cancels over an epoch
        local=["alpha"],
        model=model,
        compile_kwargs={"mode": "JAX"},
        **options,
    )
    step.setup_chain(np.random.default_rng(0), 0, 0)
    point = model.initial_point()
    draws = []
    for k in range(50):
        point, _ = step.step(point)
        if k >= 10:
            draws.append(np.vstack([point["mu"], point["alpha"], point["log_tau"]]))
    draws = np.concatenate(draws, axis=1)
    sd = np.sqrt(np.diag(covariance))
    error = (draws.mean(axis=1) - mean) / sd
    ratio = draws.std(axis=1) / sd
    correlation = np.corrcoef(draws) - covariance / np.outer(sd, sd)
    # 40 draws of 400 copies: Monte Carlo errors of 0.01, and of the mean about 0.03, because all
    # copies see the same batches; the bias of these step sizes is below 0.03.
    assert np.abs(error).max() < 0.1
    assert np.abs(ratio - 1).max() < 0.05
    assert np.abs(correlation).max() < 0.05


@pytest.mark.long
@pytest.mark.slow(8)
def test_poisson_counts_with_gamma_rates():
    """Exact by quadrature over the one shared parameter, given which the rates are Gamma."""
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(12), rng.integers(1, 7, 12))
    counts, R = rng.poisson(rng.gamma(2, 1.5, 12)[groups]), 400
    with pm.Model() as model:
        t = pm.Normal("t", 0, 1, shape=R)
        rate = pm.Gamma("rate", 2, pm.math.exp(t), shape=(14, R))
        pm.Poisson("y", rate[groups], observed=np.repeat(counts[:, None], R, axis=1))
    n, total = np.bincount(groups, minlength=14), np.bincount(groups, counts, minlength=14)
    grid = np.linspace(-5, 4, 2000)
    log_rate = np.log(np.exp(grid)[:, None] + n)  # of the rates' own Gamma, the shape is 2 + total
    log_p = -(grid**2) / 2 + (2 * grid[:, None] - (2 + total) * log_rate).sum(axis=1)
    weights = np.exp(log_p - log_p.max())

    def average(values):
        return np.average(values, axis=0, weights=weights)

    mean = np.append(digamma(2 + total) - average(log_rate), average(grid))
    square = np.append(average(log_rate**2), average(grid**2))
    spread = square - np.append(average(log_rate), mean[-1]) ** 2
    sd = np.sqrt(spread + np.append(polygamma(1, 2 + total), 0))
    step = sgm.MSGNHT_S(
        step_size=0.04,
        batch_size=10,
        replacement=False,  # noise that all copies share cancels over an epoch
        thin=300,
        batches="groups",
        local=["rate"],
        model=model,
        compile_kwargs={"mode": "JAX"},
    )
    step.setup_chain(np.random.default_rng(0), 0, 0)
    point = model.initial_point()
    draws = []
    for k in range(50):
        point, _ = step.step(point)
        if k >= 10:
            draws.append(np.vstack([point["rate_log__"], point["t"]]))
    draws = np.concatenate(draws, axis=1)
    # as for the hierarchy above
    assert np.abs((draws.mean(axis=1) - mean) / sd).max() < 0.1
    assert np.abs(draws.std(axis=1) / sd - 1).max() < 0.05


@cache
def nested_replicas(R):
    """Many copies of 12 schools of 1 to 6 rows in 4 districts, and the exact moments."""
    rng = np.random.default_rng(5)
    school = np.repeat(np.arange(12), rng.integers(1, 7, 12))
    district = np.arange(12) % 4
    y = rng.normal(size=len(school))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=R)
        of_district = pm.Normal("district", mu, 0.8, shape=(4, R))
        of_school = pm.Normal("school", 0, 0.6, shape=(12, R))
        effects = of_school[school] + of_district[district[school]]
        pm.Normal("y", effects, 1, observed=np.repeat(y[:, None], R, axis=1))
    design = np.hstack([np.zeros((len(y), 1)), np.eye(4)[district[school]], np.eye(12)[school]])
    to_mu = np.hstack([-np.ones((4, 1)), np.eye(4), np.zeros((4, 12))])
    precision = design.T @ design + to_mu.T @ to_mu / 0.8**2
    precision[0, 0] += 1
    precision[range(5, 17), range(5, 17)] += 1 / 0.6**2
    covariance = np.linalg.inv(precision)
    return model, covariance @ design.T @ y, covariance


@pytest.mark.long
@pytest.mark.parametrize("local", [["school"], ["school", "district"]])
def test_nested_groups(local):
    """Batches of whole schools, or of whole districts, some of which have more rows than fit."""
    R = 400
    model, mean, covariance = nested_replicas(R)
    step = sgm.MSGNHT_S(
        step_size=0.04,
        batch_size=10,
        replacement=False,  # noise that all copies share cancels over an epoch
        thin=300,
        batches="groups",
        local=local,
        model=model,
        compile_kwargs={"mode": "JAX"},
    )
    step.setup_chain(np.random.default_rng(0), 0, 0)
    point = model.initial_point()
    draws = []
    for k in range(50):
        point, _ = step.step(point)
        if k >= 10:
            draws.append(np.vstack([point["mu"], point["district"], point["school"]]))
    draws = np.concatenate(draws, axis=1)
    sd = np.sqrt(np.diag(covariance))
    # as for the hierarchy above
    assert np.abs((draws.mean(axis=1) - mean) / sd).max() < 0.1
    assert np.abs(draws.std(axis=1) / sd - 1).max() < 0.05
    assert np.abs(np.corrcoef(draws) - covariance / np.outer(sd, sd)).max() < 0.05


# ---- chains and their state ----------------------------------------------------------------


@cache
def crossed_step(mode):
    """Two indices, one of them with groups without rows, and small batches."""
    with pm.Model():
        u = pm.Normal("u", 0, pm.HalfNormal("scale"), shape=(6, 2))
        bias = pm.Gamma("bias", 2, pm.HalfNormal("rate"), shape=5)
        mu = u[hierarchies.GROUP, 0] + u[hierarchies.GROUP, 1] * bias[hierarchies.OTHER]
        pm.Normal("y", mu, observed=hierarchies.Y)
        return sgm.MSGNHT_S(
            step_size=0.05,
            batch_size=3,
            thin=5,
            local=["u", "bias"],
            compile_kwargs={"mode": mode},
        )


@cache
def nested_step(mode):
    """Batches of whole districts, one of which comes in parts; a school without rows."""
    with pm.Model():
        school = pm.Normal("school", 0, pm.HalfNormal("tau"), shape=5)
        district = pm.Normal("district", pm.Normal("mu"), 1, shape=2)
        mu = school[hierarchies.GROUP] + district[hierarchies.DISTRICT]
        pm.Normal("y", mu, observed=hierarchies.Y)
        return sgm.MSGNHT_S(
            step_size=0.05,
            batch_size=3,
            batches="groups",
            thin=5,
            local=["school", "district"],
            compile_kwargs={"mode": mode},
        )


def sampled(step, **settings):
    return sgm.sample(
        12,
        tune=3,
        chains=2,
        random_seed=4,
        step=step,
        model=step.model,
        progressbar=False,
        quiet=True,
        compute_convergence_checks=False,
        **settings,
    )


def assert_equal_draws(a, b, **tolerance):
    for name, values in a.posterior.data_vars.items():
        np.testing.assert_allclose(b.posterior[name], values, err_msg=name, **tolerance)


@pytest.mark.slow(12)
def test_chains_together_draw_what_they_draw_alone():
    step = crossed_step("JAX")
    alone = sampled(step, chain_method="sequential")
    together = sampled(step, chain_method="vectorized")
    assert_equal_draws(alone, together, rtol=1e-7, atol=1e-9)
    # groups without rows are drawn from their prior, each time and in each chain
    without_rows = together.posterior["u"].sel(u_dim_0=[4, 5])
    assert np.unique(without_rows).size == without_rows.size
    assert not np.isclose(without_rows.sel(chain=0), without_rows.sel(chain=1)).any()


@pytest.mark.long
def test_draws_do_not_depend_on_the_calls():
    """Groups without rows are drawn at the end of each call, from a copy of the generator."""
    step = crossed_step("JAX")
    point = step.model.initial_point()

    def draw(longest):
        step.setup_chain(np.random.default_rng(1), 0, 0)
        step.chain.call_length = SimpleNamespace(n_updates=longest, took=lambda n, seconds: None)
        return step.step(step.step(point)[0])[0]

    whole, parts = draw(5), draw(2)
    for name, values in whole.items():
        # XLA may order sums otherwise in a scan of another length
        np.testing.assert_allclose(parts[name], values, rtol=1e-9, err_msg=name)


@cache
def streamed_step(mode):
    return step_of_containers(COLUMNS, streamed=True, compile_kwargs={"mode": mode})


@pytest.mark.slow(12)
@pytest.mark.parametrize(
    ("make", "mode"),
    [
        pytest.param(nested_step, "NUMBA", marks=pytest.mark.long),
        (streamed_step, "JAX"),
    ],
)
def test_chains_with_other_batches(make, mode):
    step = make(mode)
    assert ("batches='groups'" in repr(step)) == (make is not streamed_step)
    alone = sampled(step, chain_method="sequential")
    together = sampled(step, chain_method="vectorized")
    assert_equal_draws(alone, together, rtol=1e-7, atol=1e-9)


@pytest.mark.slow(8)
@pytest.mark.parametrize(
    "make",
    [
        streamed_step,
        *(pytest.param(make, marks=pytest.mark.long) for make in (crossed_step, nested_step)),
    ],
)
def test_resumes_bit_for_bit(make, tmp_path):
    step, method = make("JAX"), "vectorized"
    undisturbed = sampled(step, chain_method=method)

    def interrupt(trace, draw):
        if draw.draw_idx == 8:
            raise KeyboardInterrupt

    store = tmp_path / "run.zarr"
    sampled(step, chain_method=method, trace=sgm.ZarrStore(store), callback=interrupt)
    resumed = sampled(step, chain_method=method, trace=sgm.ZarrStore(store), resume=True)
    assert_equal_draws(undisturbed, resumed, rtol=0)


@pytest.mark.slow(8)
def test_copies_in_other_processes():
    """A pickled step goes on as it would here."""
    step = crossed_step("JAX")
    point = step.model.initial_point()
    step.setup_chain(np.random.default_rng(1), 0, 0)
    point, _ = step.step(point)
    copied = cloudpickle.loads(cloudpickle.dumps(step))
    here, there = step.step(point)[0], copied.step(point)[0]
    for name, values in here.items():
        np.testing.assert_array_equal(there[name], values, err_msg=name)


# ---- which variables are local -------------------------------------------------------------


def local_names(model, local="auto", **options):
    step = sgm.SGLD(step_size=1e-3, batch_size=3, model=model, local=local, **options)
    return [v.value.name for v in getattr(step.source, "variables", [])]


def with_groups(n_groups, write):
    """A model of `N` rows and a variable of so many groups."""
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 1, shape=n_groups)
        pm.Normal("y", write(alpha), 1, observed=hierarchies.Y)
    return model


@pytest.fixture
def not_compiled(monkeypatch):
    """Which variables are local is known before anything is compiled."""
    monkeypatch.setattr(Chain, "try_out", lambda *_: None)


@pytest.mark.usefixtures("not_compiled")
def test_automatic_with_many_groups(caplog):
    def by_group(alpha):
        return alpha[hierarchies.GROUP]

    with caplog.at_level("INFO", logger="pymc.sgmcmc"):
        assert local_names(with_groups(500, by_group)) == ["alpha"]
    assert "(local='auto'): 'alpha'" in caplog.text
    assert local_names(with_groups(499, by_group)) == []  # so few are moved at once
    assert local_names(with_groups(499, by_group), ["alpha"]) == ["alpha"]
    assert local_names(with_groups(500, by_group), None) == []
    assert local_names(with_groups(500, by_group), temperature=0.5) == []


SLOPES = np.linspace(0, 1, 1000)
NOT_LOCAL = {
    "sum": (lambda a: a[hierarchies.GROUP] - a.sum(), "other than through an index"),
    "mean within": (lambda a: (a - a.mean())[hierarchies.GROUP], "depend on groups other than"),
    "two indices": (lambda a: a[hierarchies.GROUP] - a[hierarchies.OTHER], "several indices"),
    "no index": (lambda a: SLOPES @ a, "no data are an index"),
    "index from a parameter": (
        lambda a: a[(hierarchies.GROUP + pt.switch(a[0] > 0, 0, 1)) % 4],
        "no data are an index",
    ),
    "a scan": (lambda a: pt.cumsum(a)[hierarchies.GROUP], "depend on groups other than"),
}


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize("name", NOT_LOCAL)
def test_what_is_not_local_moves_at_every_update(name, caplog):
    """With the reason: in the log, or in an error if it was asked for by name.

    Not in the log for slopes and weights of networks, which nobody takes for effects of groups.
    """
    write, reason = NOT_LOCAL[name]
    model = with_groups(1000, write)
    with caplog.at_level("INFO", logger="pymc.sgmcmc"):
        assert local_names(model) == []
    is_said = name != "no index"
    assert ("'alpha' moves at every update" in caplog.text) is is_said
    assert (reason in caplog.text) is is_said
    with pytest.raises(ValueError, match=f"'alpha' cannot be local: .*{reason}"):
        local_names(model, ["alpha"])


@pytest.mark.usefixtures("not_compiled")
def test_weights_of_a_classifier_are_not_told_as_groups(caplog):
    """Its likelihood takes the probability of each row's class by number."""
    with pm.Model() as model:
        weights = pm.Normal("weights", shape=(1000, 3))
        classes = hierarchies.GROUP % 3
        logits = pt.dot(np.ones((len(classes), 1000)), weights)
        pm.Categorical("y", logit_p=logits, observed=classes)
    with caplog.at_level("INFO", logger="pymc.sgmcmc"):
        assert local_names(model) == []
    assert "'weights'" not in caplog.text


@pytest.mark.usefixtures("not_compiled")
def test_priors_that_tie_groups_together():
    def model(alpha_of):
        with pm.Model() as model:
            alpha = alpha_of()
            pm.Normal("y", alpha[hierarchies.GROUP], 1, observed=hierarchies.Y)
        return model

    zero_sum = model(lambda: pm.ZeroSumNormal("alpha", 1, shape=1000))
    walk = model(lambda: pm.GaussianRandomWalk("alpha", init_dist=pm.Normal.dist(), steps=999))

    def with_potential():
        alpha = pm.Normal("alpha", shape=1000)
        pm.Potential("soft_sum", -(alpha.sum() ** 2))
        return alpha

    for tied, reason in [
        (zero_sum, "spans the groups|cannot be written|no data are an index"),
        (walk, "spans the groups"),
        (model(with_potential), "'soft_sum' depends on it"),
    ]:
        assert local_names(tied) == []
        with pytest.raises(ValueError, match=f"'alpha' cannot be local: .*({reason})"):
            local_names(tied, ["alpha"])


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"local": ["beta"]}, "'beta' is not a variable of this step; those are 'alpha'"),
        ({"local": "alpha"}, "must be 'auto', None or a list of names"),
        ({"local": ["alpha"], "batch_size": None}, "pass batch_size="),
        ({"local": ["alpha"], "temperature": 0.5}, "use temperature=1"),
        ({"batches": "groups", "step_size": "auto"}, "local='auto' finds none: name them"),
        ({"batches": "users"}, "batches='users' must be 'auto', 'rows' or 'groups'"),
        ({"batches": "groups"}, "needs local variables, and local='auto' finds none"),
        ({"batches": "groups", "local": None}, "needs local variables, but local=None"),
        ({"batches": "groups", "temperature": 0.5}, "use temperature=1. Use batches='rows'"),
    ],
)
def test_invalid_arguments(options, said):
    model = with_groups(4, lambda alpha: alpha[hierarchies.GROUP])
    with pytest.raises(ValueError, match=said):
        sgm.SGLD(**{"step_size": 1e-3, "batch_size": 3, "model": model, **options})


@pytest.mark.usefixtures("not_compiled")
def test_crossed_groups_are_not_whole():
    model = hierarchies.crossed()
    with pytest.raises(ValueError, match="those of 'u', 'v', 'bias' are crossed"):
        local_names(model, LOCAL["crossed"], batches="groups")
    assert local_names(model, ["u"], batches="groups") == ["u"]


def test_streamed_groups_are_not_whole():
    with pytest.raises(ValueError, match="batches='groups' needs all rows in memory, and data="):
        step_of_containers(COLUMNS, streamed=True, local=["u"], batches="groups")


def test_streams_with_wrong_groups():
    wrong = COLUMNS | {"group": np.where(hierarchies.GROUP == 1, 7, 0)}
    with pytest.raises(ValueError, match="have the group 7, but the variable has 4 groups"):
        step_of_containers(wrong, streamed=True)


def test_indices_that_are_not_whole_numbers():
    """PyTensor's own error, when the model is written."""
    with pytest.raises(TypeError, match="must be integers"):
        with_groups(4, lambda alpha: alpha[hierarchies.GROUP.astype(float)])


def test_indices_out_of_range():
    with pytest.raises(ValueError, match="index 4 is out of bounds"):
        local_names(with_groups(4, lambda alpha: alpha[hierarchies.OTHER]), ["alpha"])


@pytest.mark.usefixtures("not_compiled")
def test_new_data_with_other_empty_groups():
    with pm.Model() as model:
        group = pm.Data("group", hierarchies.GROUP)
        alpha = pm.Normal("alpha", shape=5)
        pm.Normal("y", alpha[group], 1, observed=hierarchies.Y)
        step = sgm.SGLD(step_size=1e-3, batch_size=3, local=["alpha"])
        pm.set_data({"group": np.minimum(hierarchies.GROUP, 2)})
    with pytest.raises(ValueError, match=r"2 groups of 'alpha' have no rows.*Make a new step"):
        step.setup_chain(np.random.default_rng(0), 0, 0)
    with model:
        pm.set_data({"group": 3 - hierarchies.GROUP})
    step.setup_chain(np.random.default_rng(0), 0, 0)
