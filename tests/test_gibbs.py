"""The gradient over Gibbs draws converges to the gradient of the exactly marginalised model."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from latent_models import CASES, PYTHON, N, exact_gradient, random_theta
from pytensor.tensor.random.type import random_generator_type

import pymc_sgmcmc as sgm
from pymc_sgmcmc.backend import backend_of
from pymc_sgmcmc.latent_gradient import latent_gradient_source
from pymc_sgmcmc.latents import without_latents
from pymc_sgmcmc.minibatch import array_value
from pymc_sgmcmc.stream import Stream

CALLS = 16
Z = 5.0
"""Standard errors allowed, of the mean over `CALLS` evaluations with seeded, independent draws."""


@pytest.fixture(autouse=True)
def _no_compiler():
    with pytensor.config.change_flags(cxx=""):
        yield


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
        stream = Stream(rng)
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
            mode=mode,
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


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_gradient_is_that_of_the_marginalised_model(case):
    model = case.model()
    theta = random_theta(model, case.latents)
    # half the rows a batch: the mean over both halves must be the gradient over all rows
    latents = sgm.Gibbs(case.latents, n_samples=10, burn_in=30, **case.settings)
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
