"""The gradient over Gibbs draws converges to the gradient of the exactly marginalised model."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from latent_models import (
    BINARY,
    CASES,
    COORDS,
    PYTHON,
    N,
    exact_gradient,
    many_kinds,
    random_theta,
    sigmoid_belief_network,
)
from pytensor.compile.mode import get_mode
from pytensor.tensor.random.type import random_generator_type

import pymc_sgmcmc as sgm
from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.latents.gibbs import affine, conditionals
from pymc_sgmcmc.latents.gibbs.affine import affine_dependence
from pymc_sgmcmc.latents.gibbs.conditionals import conditional
from pymc_sgmcmc.latents.gradient import latent_gradient_source
from pymc_sgmcmc.latents.joint import without_latents
from pymc_sgmcmc.noise import NoiseStream

CONJUGATE = ["gamma_poisson", "gamma_precision", "beta_binomial", "dirichlet_multinomial"]
LONG = [*CONJUGATE, "autoregressive"]
"""Cases whose parts others show, or that compile for long."""
CALLS = 16
Z = 5.0
"""Standard errors allowed, of the mean over `CALLS` evaluations with seeded, independent draws."""


def source_of(model, latents, batch_size=N, **options):
    smaller = without_latents(model, latents.vars)
    return latent_gradient_source(
        model, smaller, smaller.value_vars, latents, batch_size=batch_size, **options
    )


class Evaluator:
    """A source's evaluation as a function of theta and rows; each call draws anew."""

    def __init__(self, source, outputs, mode=PYTHON, seed=0):
        self.source = source
        rng = random_generator_type("rng")
        stream = NoiseStream(rng)
        theta = [
            pt.tensor(shape=shape, dtype=v.dtype)
            for v, shape in zip(source.vars, source.shapes, strict=True)
        ]
        rows = pt.tensor(shape=(source.joint.n_rows,), dtype="int64")
        constants = [c.type() for c in source.constants]
        evaluation = source.at(theta, [rows], constants, {}, stream)
        self.function = pytensor.function(
            [pytensor.In(rng, mutable=True, borrow=True), *theta, rows, *constants],
            [pytensor.Out(stream.rng, borrow=True), *outputs(evaluation)],
            mode=with_cheap_calls(get_mode(mode)),
            on_unused_input="ignore",
        )
        self.function.trust_input = True
        self.backend = backend_of(self.function.maker.mode)
        self.rng = self.backend.generator(np.random.default_rng(seed))

    def __call__(self, theta, rows):
        source, array = self.source, self.backend.array
        scale = np.asarray(source.rows[0].n_rows / source.rows[0].batch_size)
        data = [array_value(a) for a, _ in source.data]
        values = [np.asarray(theta[v.name], v.dtype) for v in source.vars]
        arguments = map(array, [*values, rows, scale, *data])
        self.rng, *out = self.function(self.rng, *arguments)
        return [np.asarray(o) for o in out]


def assert_mean_is(estimates, expected):
    """Within Z standard errors; they must be small against the gradient for that to mean much."""
    for name, values in estimates.items():
        values = np.stack(values)
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        off = np.abs(values.mean(axis=0) - expected[name])
        assert np.all(off <= Z * error + 1e-6 * np.abs(expected[name])), (
            f"{name}: mean {values.mean(axis=0)}, exact {expected[name]}, error {error}"
        )


@pytest.mark.slow(23)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.long if case.name in LONG else (), id=case.name)
        for case in CASES
    ],
)
def test_gradient_is_that_of_the_marginalised_model(case):
    model = case.model()
    theta = random_theta(model, case.latents)
    # half the rows per batch: the mean over both halves must be the gradient over all rows
    latents = sgm.Gibbs(case.latents, n_samples=5, burn_in=20, **case.settings)
    source = source_of(model, latents, batch_size=N // 2)
    evaluate = Evaluator(source, lambda e: e.likelihood)
    halves = np.arange(N).reshape(2, -1)
    calls = []
    for _ in range(CALLS):
        parts = [evaluate(theta, half) for half in halves]
        calls.append([np.mean(g, axis=0) for g in zip(*parts, strict=True)])
    names = [v.name for v in source.vars]
    estimates = dict(zip(names, zip(*calls, strict=True), strict=True))
    exact = exact_gradient(case, theta)
    assert_mean_is(estimates, exact)
    errors = np.concatenate([np.ravel(np.std(v, axis=0)) for v in estimates.values()])
    scale = np.sqrt(np.mean(np.concatenate([np.ravel(g) for g in exact.values()]) ** 2))
    assert errors.max() < scale  # the comparison can tell


@pytest.mark.slow(4)
@pytest.mark.parametrize("name", CONJUGATE)
def test_conjugate_conditionals_are_drawn_exactly(name):
    """No burn-in, and one draw that owes nothing to its start: an unbiased gradient."""
    [case] = [case for case in CASES if case.name == name]
    model = case.model()
    theta = random_theta(model, case.latents)
    source = source_of(model, sgm.Gibbs(case.latents, n_samples=1, burn_in=0))
    evaluate = Evaluator(source, lambda e: [*e.likelihood, *e.diagnostics])
    calls = [evaluate(theta, np.arange(N)) for _ in range(2 * CALLS)]
    *gradients, moves = zip(*calls, strict=True)
    names = [v.name for v in source.vars]
    assert_mean_is(dict(zip(names, gradients, strict=True)), exact_gradient(case, theta))
    assert np.all(np.array(moves) == 1)  # each draw is accepted


def test_a_conditional_of_the_users_own_is_used():
    """With exact draws no burn-in is needed: a single draw gives an unbiased gradient."""

    def posterior(values, stream):
        a, b, y = values["a"], values["b"], values["y"]
        return stream.draw(pt.random.beta, a + y, b + 12 - y)

    [case] = [case for case in CASES if case.name == "beta_binomial"]
    model = case.model()
    theta = random_theta(model, case.latents)
    latents = sgm.Gibbs(["p"], n_samples=1, burn_in=0, conditional={model["p"]: posterior})
    source = source_of(model, latents)
    evaluate = Evaluator(source, lambda e: e.likelihood)
    calls = [evaluate(theta, np.arange(N)) for _ in range(2 * CALLS)]
    names = [v.name for v in source.vars]
    estimates = dict(zip(names, zip(*calls, strict=True), strict=True))
    assert_mean_is(estimates, exact_gradient(case, theta))


@pytest.mark.slow(3)
def test_curvature_is_that_of_the_marginalised_model():
    """Hessian of the joint plus covariance of its gradients, against finite differences."""
    [case] = [case for case in CASES if case.name == "categorical_mixture"]
    model = case.model()
    theta = random_theta(model, case.latents)
    source = source_of(model, sgm.Gibbs(["z"], n_samples=40, burn_in=5))
    rng = np.random.default_rng(5)
    v = {name: rng.normal(size=np.shape(value)) for name, value in theta.items()}
    direction = [pt.constant(v[var.name]) for var in source.vars]
    evaluate = Evaluator(source, lambda e: e.mean_curvature(direction))
    calls = [evaluate(theta, np.arange(N)) for _ in range(CALLS)]
    names = [var.name for var in source.vars]
    ahead, behind = (
        exact_gradient(case, {name: theta[name] + e * v[name] for name in theta})
        for e in (1e-5, -1e-5)
    )
    exact = {name: (ahead[name] - behind[name]) / 2e-5 / N for name in names}
    assert_mean_is(dict(zip(names, zip(*calls, strict=True), strict=True)), exact)


@pytest.mark.parametrize(
    ("mode", "build", "names"),
    [
        pytest.param(
            "JAX", many_kinds, ["bits", "kind", "factor", "scale"], marks=pytest.mark.long
        ),
        # it takes minutes over the other one
        pytest.param("NUMBA", sigmoid_belief_network, ["z"], marks=pytest.mark.long),
    ],
)
@pytest.mark.slow(18)
def test_backends_agree(mode, build, names):
    """Every kind of move, compiled, gives the gradient that Python gives."""
    model = build()
    theta = random_theta(model, names)
    latents = sgm.Gibbs(names, n_samples=5, burn_in=5)
    source = source_of(model, latents, self_check=False)

    def means(mode):
        outputs = lambda e: [e.potential, *e.likelihood, *e.diagnostics]  # noqa: E731
        evaluate = Evaluator(source, outputs, mode)
        calls = [evaluate(theta, np.arange(N)) for _ in range(CALLS)]
        return [np.stack(values) for values in zip(*calls, strict=True)]

    for ours, pythons in zip(means(mode), means(PYTHON), strict=True):
        error = np.sqrt((ours.var(axis=0, ddof=1) + pythons.var(axis=0, ddof=1)) / CALLS)
        assert np.all(np.abs(ours.mean(axis=0) - pythons.mean(axis=0)) <= Z * error)


# ---- fast paths --------------------------------------------------------------------------


def draws_of(source, theta, seed=1):
    rng = random_generator_type("rng")
    stream = NoiseStream(rng)
    inputs = [v.type() for v in source.inputs]
    joint = source.joint.at(dict(zip(source.inputs, inputs, strict=True)))
    values = source.latents.draw(joint, {}, stream).values
    function = pytensor.function([rng, *inputs], values, mode=PYTHON, on_unused_input="ignore")
    data = [array_value(a) for a, _ in source.data]
    point = [theta[v.name] for v in source.vars]
    return function(np.random.default_rng(seed), *point, np.arange(N), np.array(1.0), *data)


@pytest.mark.slow(3)
@pytest.mark.parametrize("name", ["sigmoid_belief_network", "two_layers"])
def test_running_log_odds_draw_what_a_full_evaluation_draws(name, monkeypatch):
    """With the same random numbers the flips are the same, unit for unit."""
    [case] = [case for case in CASES if case.name == name]
    model = case.model()
    theta = random_theta(model, case.latents)
    source = source_of(model, sgm.Gibbs(case.latents, n_samples=3, burn_in=2))
    fast = draws_of(source, theta)
    monkeypatch.setattr(conditionals, "match_bernoulli", lambda logp: None)
    general = draws_of(source, theta)
    monkeypatch.setattr(affine, "_is_affine", lambda *args: False)
    full = draws_of(source, theta)
    for a, b, c in zip(fast, general, full, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_sigmoid_layers_take_the_fast_path():
    """Each layer: one Bernoulli term below it, the rest a table; no full evaluation."""
    for name in ("sigmoid_belief_network", "two_layers"):
        [case] = [case for case in CASES if case.name == name]
        source = source_of(case.model(), sgm.Gibbs(case.latents))
        for variable in source.joint.variables:
            found = conditional(source.joint, variable, logistic=True)
            assert len(found.logistic) == 1
            assert not found.maps


def test_one_logit_for_several_observed_values():
    """The fast path is for one log odds an observed value; others are evaluated."""
    with pm.Model(coords=COORDS) as model:
        w = pm.Normal("w", 0, 1, dims="hidden")
        z = pm.Bernoulli("z", 0.5, dims=("obs", "hidden"))
        pm.Bernoulli("x", logit_p=(z @ w)[:, None], observed=BINARY, dims=("obs", "pixel"))
    source = source_of(model, sgm.Gibbs(["z"]))
    [variable] = source.joint.variables
    assert not conditional(source.joint, variable, logistic=True).logistic


@pytest.mark.parametrize(
    "of_z",
    [
        lambda z, W, x: z @ W,
        lambda z, W, x: x[:, None] - 2 * pt.dot(z, W) / 3,
        lambda z, W, x: (z[:, :, None] * W).sum(axis=1),
        lambda z, W, x: z[:, 0] * W[0, 0] - z[:, 2] + x,
        lambda z, W, x: pt.concatenate([z[:, :1], z], axis=1) @ W[[0, 0, 1, 2]],
        lambda z, W, x: pt.exp(z @ W) * x[:, None] + z.sum(axis=1)[:, None],
        lambda z, W, x: (z * x[:, None]) @ W,
        lambda z, W, x: W[z[:, 0]] * z[:, 1:2],
        lambda z, W, x: (z[:, 1] / 2).astype("int64") * W[0, 0] + x,
        lambda z, W, x: (z + 300).astype("int8") @ W,
    ],
)
def test_affine_maps_move_by_their_columns(of_z):
    """Whatever the expression, maps moved by columns give the value at the moved z."""
    rng = np.random.default_rng(0)
    z, W, x = pt.tensor("z", shape=(None, 3), dtype="int32"), pt.matrix("W"), pt.vector("x")
    expression = of_z(z, W, x)
    found = affine_dependence(expression, z, [x])
    basis = pt.constant(np.eye(3, dtype="int32"))
    moved_maps = [
        (a + (column[1] * 2 if a.ndim == 1 else column[1][None] * 2)).astype(a.dtype)
        for a, column in zip(found.frontier, found.columns(basis), strict=True)
    ]
    [moved] = substitute([expression], dict(zip(found.frontier, moved_maps, strict=True)))
    z0 = rng.integers(1, size=(5, 3)).astype("int32")  # so that z + 2 is still an index of W
    rest = rng.normal(size=(3, 4)), rng.normal(size=5)
    at = pytensor.function([z, W, x], [expression, moved], mode=PYTHON, on_unused_input="ignore")
    z1 = z0 + 2 * np.eye(3, dtype="int32")[1]
    np.testing.assert_allclose(at(z0, *rest)[1], at(z1, *rest)[0])
