"""Groups: samplers side by side on one gradient."""

import logging

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from scipy.stats import norm

import pymc_sgmcmc as sgm
from pymc_sgmcmc import kernel
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.samplers.groups import Grouped, Member
from tests.samplers import (
    UNCONSTRAINED,
    Chain,
    KickFirstThermostat,
    OneUpdate,
    assert_mean,
    stationary_covariance,
)

RUN = dict(progressbar=False, compute_convergence_checks=False)
FAST = {"compile_kwargs": {"mode": PYTHON}}
SHAPES = [(2, 3), (), (4,)]


def log_likelihood(theta):
    """Not separable: what one group sees depends on where the others are asked for."""
    a, b, c = theta
    return -pt.sum((a - b) ** 2) - pt.sum(pt.cosh(c - a[0, 0])) - b**4 / 4


def log_prior(theta):
    return -0.5 * sum(pt.sum(t * t) for t in theta)


def grouped(algorithm, *positions):
    return Grouped(tuple(Member(f"g_{k}", algorithm, p, 1) for k, p in enumerate(positions)))


# ---- the update ----------------------------------------------------------------------------

ALGORITHMS = [
    s.step.algorithm_class(**s.noisy_settings) for s in UNCONSTRAINED if not s.has_one_thermostat
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_groups_of_one_sampler_are_that_sampler(algorithm):
    """Bit for bit, given the same noise: any division of the variables, any order of them.

    (One thermostat for all of a step's variables: groups have one each.)
    """
    rng = np.random.default_rng(0)
    theta = [np.asarray(rng.normal(size=shape)) for shape in SHAPES]
    divided = grouped(algorithm, (1,), (0, 2))
    alone = OneUpdate(algorithm, theta, log_likelihood, log_prior, n_data=7)
    together = OneUpdate(divided, theta, log_likelihood, log_prior, n_data=7)
    assert together.n_gradients == alone.n_gradients
    other_theta = theta
    state = algorithm.init(theta, rng)
    other = {f"g_0.{name}": arrays[1:2] for name, arrays in state.items()}
    other |= {f"g_1.{name}": [arrays[0], arrays[2]] for name, arrays in state.items()}
    assert set(divided.init(theta, rng)) == set(other)
    for _ in range(3):
        draws = [
            [np.asarray(rng.normal(size=shape)) for shape in SHAPES] for _ in range(alone.n_noises)
        ]
        theta, state = alone(theta, state, 0.1, *draws)
        of_groups = [[z[1]] for z in draws] + [[z[0], z[2]] for z in draws]
        other_theta, other = together(other_theta, other, np.full(2, 0.1), *of_groups)
        for mine, expected in zip(other_theta, theta, strict=True):
            np.testing.assert_array_equal(mine, expected)
    for name, arrays in state.items():
        np.testing.assert_array_equal(other[f"g_0.{name}"][0], arrays[1])
        np.testing.assert_array_equal(other[f"g_1.{name}"][1], arrays[2])


def test_curvature_is_the_groups_block():
    """PSGLD's Gamma with two groups: where they are independent, that of all variables."""

    def separable(theta):
        return -sum(pt.sum(pt.cosh(t) * (k + 1)) for k, t in enumerate(theta))

    rng = np.random.default_rng(1)
    algorithm = sgm.PSGLD.algorithm_class(alpha=0.5, lam=0.3, gamma=True)
    theta = [np.asarray(rng.normal(size=shape)) for shape in SHAPES]
    alone = OneUpdate(algorithm, theta, separable)
    together = OneUpdate(grouped(algorithm, (1,), (0, 2)), theta, separable)
    V = [rng.gamma(1.0, size=shape) for shape in SHAPES]
    draws = [[rng.normal(size=shape) for shape in SHAPES] for _ in range(2)]
    expected, _ = alone(theta, {"V": V}, 0.1, *draws)
    of_groups = [[z[1]] for z in draws] + [[z[0], z[2]] for z in draws]
    state = {"g_0.V": V[1:2], "g_1.V": [V[0], V[2]]}
    moved, _ = together(theta, state, np.full(2, 0.1), *of_groups)
    for mine, theirs in zip(moved, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-13)


def test_own_step_sizes():
    """On a separable target each group is its sampler with its step size: the exact covariances."""
    precision = np.diag([1.0, 4.0])
    sgld, sghmc = sgm.SGLD.algorithm_class(), sgm.SGHMC_S.algorithm_class(friction=2.0)
    both = Grouped((Member("a", sghmc, (1,), 1), Member("b", sgld, (0,), 1)))
    theta = [np.zeros(1), np.zeros(1)]

    def log_p(theta):
        return -0.5 * (precision[0, 0] * theta[0] ** 2 + precision[1, 1] * theta[1] ** 2).sum()

    update = OneUpdate(both, theta, log_p)
    variances = [
        stationary_covariance(sgld, precision[:1, :1], 0.3)[0, 0],
        stationary_covariance(sghmc, precision[1:, 1:], 0.5)[0, 0],
    ]
    # linear: the covariance that one update leaves unchanged, from images of unit vectors
    state_size = 3

    def image(x):
        moved, state = update(
            [x[:1], x[1:2]], {"a.p": [x[2:3]]}, np.array([0.5, 0.3]), [x[3:4]], [x[4:5]]
        )
        return np.concatenate([*moved, state["a.p"][0]])

    columns = np.column_stack([image(e) for e in np.eye(5)])
    M, Q = columns[:, :state_size], columns[:, state_size:] @ columns[:, state_size:].T
    S = np.linalg.solve(np.eye(9) - np.kron(M, M), Q.ravel()).reshape(3, 3)
    np.testing.assert_allclose(np.diag(S)[:2], variances)


def test_different_numbers_of_gradients_are_refused():
    members = (
        Member("one", sgm.SGLD.algorithm_class(), (0, 1), 1),
        Member("two", KickFirstThermostat(), (2,), 1),
    )
    theta = [np.zeros(shape) for shape in SHAPES]
    with pytest.raises(ValueError, match=r"they evaluate \{'one': 1, 'two': 2\}"):
        OneUpdate(Grouped(members), theta, log_likelihood)


class Particular(sgm.SGLD.algorithm_class):
    """Has a state and a statistic, and insists that they are its own."""

    def __init__(self, kind):
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "statistics", (kind,))

    def init(self, theta, rng):
        return {self.kind: [np.zeros(())]}

    def update(self, theta, state, gradient, h, noise):
        assert set(state) == {self.kind}
        theta, _ = super().update(theta, {}, gradient, h, noise)
        return theta, {self.kind: [state[self.kind][0] + 1]}

    def diagnostics(self, state):
        assert set(state) == {self.kind}
        return state[self.kind]

    def burn_in_warning(self, diagnostics, n_elements, shuffled):
        assert set(diagnostics) == {self.kind}


@pytest.mark.parametrize(("short", "long"), [("a", "a_b"), ("sgnht", "sgnht_s")])
def test_name_that_is_the_beginning_of_another(short, long):
    members = (
        Member(short, Particular("b_p"), (0, 1), 1),
        Member(long, Particular("q"), (2,), 1),
    )
    theta = [np.zeros(shape) for shape in SHAPES]
    together = Grouped(members)
    state = together.init(theta, np.random.default_rng(0))
    assert [list(m.own(state)) for m in members] == [["b_p"], ["q"]]
    together.diagnostics(state)
    together.burn_in_warning(dict.fromkeys(together.statistics, 0.0), 1, shuffled=True)
    _, state = OneUpdate(together, theta, log_likelihood)(
        theta,
        state,
        np.full(2, 0.1),
        *[[np.zeros(s) for s in (SHAPES[0], SHAPES[1])], [np.zeros(SHAPES[2])]],
    )
    assert [
        float(m.own(state)[kind][0]) for m, kind in zip(members, ["b_p", "q"], strict=True)
    ] == [1.0, 1.0]


def test_statistics_of_one_name():
    members = (Member("a", Particular("b_p"), (0,), 1), Member("a_b", Particular("p"), (1,), 1))
    with pytest.raises(ValueError, match=r"samplers 'a', 'a_b' of Groups both .* 'a_b_p'"):
        Grouped(members)


# ---- one gradient, one batch ---------------------------------------------------------------


class Watched(Op):
    """The identity; keeps what it is given."""

    __props__ = ("of_gradient",)

    def __init__(self, of_gradient=False):
        self.of_gradient = of_gradient

    def make_node(self, x):
        x = pt.as_tensor(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, output_storage):
        SEEN[self.of_gradient].append(np.array(inputs[0]))
        output_storage[0][0] = inputs[0].copy()

    def pullback(self, inputs, outputs, cotangents):
        return [Watched(of_gradient=True)(cotangents[0])]


SEEN: dict[bool, list] = {False: [], True: []}


@pytest.mark.slow(3)
def test_one_gradient_of_one_batch_an_update():
    """Counted as they are computed: both groups' gradients come from one backward pass."""
    y = np.arange(20.0)
    with pm.Model(coords={"obs": range(20)}) as model:
        data = pm.Data("data", y, dims="obs")
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", Watched()(a + b + 0 * data), 50.0, observed=data, dims="obs")
        step = sgm.Groups(
            [sgm.SGLD.on([a], step_size=1e-3), sgm.MSGNHT_S.on([b], step_size=1e-3)],
            batch_size=4,
            thin=10,
            self_check=False,
            **FAST,
        )
    step.setup_chain(np.random.default_rng(0), 0, 0)
    step.step(model.initial_point())
    for seen in SEEN.values():
        seen.clear()
    step.step(model.initial_point())
    assert len(SEEN[True]) == 10
    batches = [tuple(g * 0) for g in SEEN[True]]
    assert all(len(batch) == 4 for batch in batches)
    # forward: once per update and once for the potential
    assert len({x.tobytes() for x in SEEN[False]}) <= 11


@pytest.mark.long
def test_dirichlet_and_normal():
    """SGRLD and MSGNHT_S on a mixture: the exact posterior by quadrature over (w, mu)."""
    rng = np.random.default_rng(1)
    y = np.concatenate([rng.normal(-1, 0.6, 12), rng.normal(1, 0.6, 18)])
    R = 500
    with pm.Model() as model:
        w = pm.Dirichlet("w", [1.5, 1.0], shape=(R, 2))
        mu = pm.Normal("mu", 0, 1, shape=R)
        centres = pt.stack([pt.full((R,), -1.0), mu], axis=-1)
        pm.NormalMixture("y", w, centres, 0.6, observed=np.repeat(y[:, None], R, axis=1))
    values = {v.name: v for v in model.value_vars}
    names = list(values)
    order = {name: names.index(name) for name in names}
    algorithm = Grouped(
        (
            Member("sgrld", sgm.SGRLD.algorithm_class(2.5), (order["w_simplex__"],), R),
            Member("msgnht_s", sgm.MSGNHT_S.algorithm_class(2.0), (order["mu"],), R),
        )
    )
    chain = Chain(model, algorithm, "JAX")
    theta, state = chain.run([0.004, 0.06], seed=2, snapshots=60, every=40, burn_in=30)
    first = 1 / (1 + np.exp(-2 * theta[order["w_simplex__"]][..., 0]))
    centre = theta[order["mu"]]
    grid_w, grid_mu = np.meshgrid((np.arange(400) + 0.5) / 400, np.linspace(-2, 3, 401))
    log_p = 0.5 * np.log(grid_w) - 0.5 * grid_mu**2
    for value in y:
        parts = grid_w * norm.pdf(value, -1, 0.6) + (1 - grid_w) * norm.pdf(value, grid_mu, 0.6)
        log_p = log_p + np.log(parts)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    for draws, grid in [(first, grid_w), (centre, grid_mu)]:
        mean = np.sum(p * grid)
        var = np.sum(p * (grid - mean) ** 2)
        assert_mean(draws.mean(axis=0), mean, 0.03 * np.sqrt(var))
        assert_mean(((draws - mean) ** 2).mean(axis=0), var, 0.03 * var)
    means = np.sum(p * grid_w), np.sum(p * grid_mu)
    covariance = np.sum(p * (grid_w - means[0]) * (grid_mu - means[1]))
    product = ((first - means[0]) * (centre - means[1])).mean(axis=0)
    assert_mean(product, covariance, 0.03 * abs(covariance))
    assert_mean((state["msgnht_s.p"][0] ** 2).mean(axis=0), 1, 0.02)


# ---- the step ------------------------------------------------------------------------------


def groups_of(regression, **options):
    w, b, sigma = (regression[name] for name in ("w", "b", "sigma"))
    schedule = sgm.PolynomialDecay(a=1e-4, b=1.0, c=0.5)
    options = {"batch_size": 20, "thin": 5} | FAST | options
    with regression:
        return sgm.Groups(
            [
                sgm.MSGNHT_S.on([w], step_size=0.01, diffusion=2.0),
                sgm.SGLD.on(b, step_size=schedule),
                sgm.MSGNHT_S.on([sigma], step_size=0.005),
            ],
            **options,
        )


def test_statistics_tell_groups_apart(regression):
    step = groups_of(regression)
    step.setup_chain(np.random.default_rng(0), 0, 0)
    _, [stats] = step.step(regression.initial_point())
    assert set(stats) == set(step.stats_dtypes_shapes)
    own = {name for name in stats if name.startswith(("msgnht", "sgld"))}
    assert own == {
        "msgnht_s_1_step_size", "msgnht_s_1_kinetic_temperature", "msgnht_s_1_thermostat",
        "sgld_step_size",
        "msgnht_s_2_step_size", "msgnht_s_2_kinetic_temperature", "msgnht_s_2_thermostat",
    }  # fmt: skip
    assert stats["msgnht_s_1_step_size"] == 0.01
    assert stats["msgnht_s_2_step_size"] == 0.005
    np.testing.assert_allclose(stats["sgld_step_size"], 1e-4 / np.sqrt(5))  # the fifth update
    for k in (1, 2):
        [xi], [p] = (step.sampler_state[f"msgnht_s_{k}.{name}"] for name in ("xi", "p"))
        np.testing.assert_allclose(stats[f"msgnht_s_{k}_thermostat"], xi.mean())
        np.testing.assert_allclose(stats[f"msgnht_s_{k}_kinetic_temperature"], np.mean(p * p))
    columns, start = step._progressbar_config(2)
    [update] = step._make_progressbar_update_functions()
    assert set(update(stats)) == {*start, "failing"}
    assert len(columns) == len(start) == 4
    assert repr(step).startswith("Groups([MSGNHT_S(step_size=0.01, diffusion=2.0) of [w], SGLD(")
    assert repr(step).endswith("batch_size=20, thin=5, replacement=True)")


def test_one_thermostat_makes_batches_independent(regression):
    """The groups share them, and only a thermostat is wrong with shuffled epochs at any step."""
    langevin = sgm.SGLD.on([regression["w"]], step_size=1e-4)
    with regression:
        for groups, independent in [
            ([langevin], False),
            ([langevin, sgm.SGNHT.on([regression["b"]], step_size=0.01)], True),
        ]:
            assert sgm.Groups(groups, batch_size=20, **FAST).replacement == independent


@pytest.mark.slow(3)
def test_a_run_and_its_state(regression):
    """Same seed, same draws; a saved state goes on identically; every variable moves."""
    step = groups_of(regression)
    with regression:
        run = dict(draws=10, tune=2, chains=2, cores=1, step=step, random_seed=3, **RUN)
        first, again = (pm.sample(**run).posterior for _ in range(2))
    for name in ["w", "b", "sigma"]:
        np.testing.assert_array_equal(first[name], again[name])
        assert float(first[name].std()) > 0
    point, _ = step.step(regression.initial_point())
    saved = step.sampling_state
    assert set(saved.sampler_state) == {
        "msgnht_s_1.p", "msgnht_s_1.xi", "msgnht_s_2.p", "msgnht_s_2.xi",
    }  # fmt: skip
    expected, _ = step.step(point)
    step.setup_chain(np.random.default_rng(8), 0, 0)
    step.sampling_state = saved
    restored, _ = step.step(point)
    for name, value in expected.items():
        np.testing.assert_array_equal(value, restored[name])


@pytest.mark.slow(4)
def test_posterior_with_another_step_for_the_rest(regression):
    """Groups need not cover the model: NUTS moves sigma."""
    w, b, sigma = (regression[name] for name in ("w", "b", "sigma"))
    with regression:
        step = sgm.Groups(
            [
                sgm.MSGNHT_S.on([w], step_size=0.01, diffusion=2.0),
                sgm.SGHMC_S.on([b], step_size=0.01, friction=5.0),
            ],
            thin=20,
            compile_kwargs={"mode": "JAX"},
        )
        nuts = pm.NUTS([sigma], compile_kwargs={"mode": Mode("py", "fast_compile")})
        idata = pm.sample(400, tune=100, chains=1, cores=1, step=[step, nuts], random_seed=4, **RUN)
    X = np.column_stack([regression["X"].get_value(), np.ones(200)])
    y = regression["target"].get_value()
    covariance = np.linalg.inv(X.T @ X + np.eye(3) / 9)
    mean = covariance @ X.T @ y
    posterior = idata.posterior
    draws = np.column_stack([posterior["w"][0], posterior["b"][0]])
    sd = np.sqrt(np.diag(covariance))
    # 400 draws, 0.2 units of time apart, are at least 40 independent ones
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 0.8 * sd)
    assert np.all(np.abs(draws.std(axis=0) / sd - 1) < 0.5)
    assert abs(float(posterior["sigma"].mean()) - 1) < 0.2


def test_warning_names_the_groups_step_size(regression, caplog):
    """A step size that diverges is told with the variable that it moved."""
    w, b, sigma = (regression[name] for name in ("w", "b", "sigma"))
    with regression:
        step = sgm.Groups(
            [
                sgm.SGLD.on([w, b], step_size=1e-4),
                sgm.SGHMC_E.on([sigma], step_size=50.0, friction=0.0),
            ],
            thin=50,
            **FAST,
        )
        with caplog.at_level(logging.WARNING):
            idata = pm.sample(2, tune=0, chains=1, step=step, random_seed=1, **RUN)
    assert idata.sample_stats["nonfinite"].any()
    assert "with step size 50" in caplog.text
    assert "'sigma_log__' became non-finite" in caplog.text


def test_caution_is_the_members(regression):
    step = groups_of(regression)
    calm = {name: 2.0 for name in step.statistics}
    absorbed = calm | {"msgnht_s_2_thermostat": 9.0}
    assert step.algorithm.burn_in_warning(calm, 4, shuffled=True) is None
    message = step.algorithm.burn_in_warning(absorbed, 4, shuffled=True)
    assert message.startswith("MSGNHT_S_2: minibatch noise has raised the thermostat (9)")


# ---- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "options", "error", "message"),
    [
        ([], {}, ValueError, "has no group"),
        ([sgm.SGLD], {}, TypeError, r"such as MSGNHT_S.on\(\[model\['w'\]\], step.* got"),
        ([("w", sgm.SGLD), ("b", sgm.SGLD), ("w", sgm.SGLD)], {}, ValueError, "'w' is in 2 groups"),
        ([("w", sgm.SGRLD)], {}, ValueError, "'w' is not one"),
        ([("w", sgm.SGLD)], {"step_size": 0.1}, TypeError, "Give 'step_size' to each group"),
        ([("w", sgm.SGLD)], {"friction": 1.0}, TypeError, "Groups has no argument 'friction'"),
        ([("w", sgm.SGLD)], {"adaptation": "dense"}, TypeError, "no argument 'adaptation': it ad"),
        ([("w", sgm.SGLD, {"friction": 1.0})], {}, TypeError, "SGLD has no argument 'friction'"),
        ([("w", sgm.SGLD, {"thin": 3})], {}, TypeError, "SGLD has no argument 'thin'"),
        ([("w", sgm.SGHMC_S, {"friction": -1.0})], {}, ValueError, "friction must be"),
    ],
)
def test_refusals(regression, monkeypatch, groups, options, error, message):
    monkeypatch.setattr(kernel, "Loop", lambda *args: pytest.fail("compiled"))
    made = [
        group[1].on([regression[group[0]]], step_size=0.1, **dict(*group[2:]))
        if isinstance(group, tuple)
        else group
        for group in groups
    ]
    with regression, pytest.raises(error, match=message):
        sgm.Groups(groups=made, **options)


# ---- with latent variables, and with all chains in one call --------------------------------


def mixture(y, latent):
    with pm.Model(coords={"obs": range(len(y))}) as model:
        w = pm.Dirichlet("w", [2.0, 1.0])
        mu = pm.Normal("mu", [-1, 1], 1)
        if latent:
            z = pm.Categorical("z", w, dims="obs")
            pm.Normal("y", mu[z], 0.7, observed=y, dims="obs")
        else:
            pm.NormalMixture("y", w, mu, 0.7, observed=y, dims="obs")
    return model


def groups_of_mixture(model, **options):
    with model:
        return sgm.Groups(
            [
                sgm.SGRLD.on([model["w"]], step_size=1e-3),
                sgm.MSGNHT_S.on([model["mu"]], step_size=0.02, diffusion=3.0),
            ],
            batch_size=50,
            thin=20,
            compile_kwargs={"mode": "JAX"},
            **options,
        )


@pytest.mark.long
def test_latent_draws_are_shared_and_chains_run_together():
    """Latent z drawn for both groups, in pm.sample; chains side by side, in sgm.sample."""
    rng = np.random.default_rng(1)
    kind = rng.random(200) < 0.3
    y = np.where(kind, rng.normal(2, 0.7, 200), rng.normal(-1, 0.7, 200))
    with_latents = mixture(y, latent=True)
    step = groups_of_mixture(with_latents, latents=sgm.Gibbs(["z"], n_samples=2, burn_in=2))
    run = dict(draws=400, tune=100, chains=2, cores=1, random_seed=2)
    latent = pm.sample(model=step.model, step=step, **run, **RUN)
    marginal = mixture(y, latent=False)
    together = sgm.sample(
        model=marginal,
        step=groups_of_mixture(marginal),
        chain_method="vectorized",
        draws=300,
        tune=100,
        chains=3,
        random_seed=3,
        **RUN,
    )
    for idata in (latent, together):
        posterior = idata.posterior
        # the data's own answer; posterior sds are about 0.03, 0.06 and 0.1, draws hundreds
        assert abs(float(posterior["w"][..., 1].mean()) - kind.mean()) < 0.03
        assert abs(float(posterior["mu"][..., 0].mean()) - y[~kind].mean()) < 0.06
        assert abs(float(posterior["mu"][..., 1].mean()) - y[kind].mean()) < 0.1
        assert 0.02 < float(posterior["w"][..., 1].std()) < 0.045
        assert (idata.sample_stats["sgrld_step_size"] == 1e-3).all()
        assert (idata.sample_stats["msgnht_s_step_size"] == 0.02).all()
