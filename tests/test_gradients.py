"""The minibatch gradient is exact on average: the mean over an epoch is the full gradient."""

import math

import numpy as np
import pymc as pm
import pytensor
import pytest
from models import MODELS, OPTIONS
from pytensor.compile.mode import Mode

from pymc_sgmcmc.batches import Batches
from pymc_sgmcmc.gradients import gradient_source
from pymc_sgmcmc.minibatch import array_value

PYTHON = Mode(linker="py", optimizer="fast_compile")
"""Nothing is compiled: these graphs run a few times each."""


@pytest.fixture(autouse=True)
def _no_compiler():
    """Inner graphs (of OpFromGraph, say) would be compiled to C in spite of the mode."""
    with pytensor.config.change_flags(cxx=""):
        yield


def random_point(model, seed=1):
    """A point off the initial one, inside every support (value variables are unconstrained)."""
    rng = np.random.default_rng(seed)
    return {
        name: (value + rng.normal(scale=0.5, size=np.shape(value))).astype(value.dtype)
        for name, value in model.initial_point().items()
    }


def constants(source, point):
    """Values of `source.constants`, as a step passes them."""
    scales = [np.asarray(r.n_rows / r.batch_size, pytensor.config.floatX) for r in source.rows]
    data = [array_value(array) for array, _ in source.data]
    return [*scales, *data, *(point[v.name] for v in source.others)]


def cycle_of_batches(n_rows, batch_size):
    """Whole epochs, cut into whole batches."""
    batches = Batches(n_rows, batch_size, np.random.default_rng(2))
    return batches.take(math.lcm(n_rows, batch_size) // batch_size)


def average_over_batches(source, point, outputs):
    """Mean of each output over all batches (streams go on side by side)."""
    function = pytensor.function(source.inputs, outputs, mode=PYTHON, on_unused_input="ignore")
    theta = [point[v.name] for v in source.vars]
    streams = [cycle_of_batches(r.n_rows, r.batch_size) for r in source.rows]
    n_batches = math.lcm(*(len(s) for s in streams))
    results = [
        function(*theta, *(s[k % len(s)] for s in streams), *constants(source, point))
        for k in range(n_batches)
    ]
    return [np.mean(values, axis=0) for values in zip(*results, strict=True)]


def evaluate(model, outputs, point):
    function = pytensor.function(model.value_vars, outputs, mode=PYTHON, on_unused_input="ignore")
    return function(*(point[v.name] for v in model.value_vars))


def assert_unbiased(model, source, rtol=1e-9, full_model=None):
    """Log likelihood, log posterior and gradient agree with the model's own, as NUTS has them."""
    full_model = full_model or model
    point = random_point(model)
    k = len(source.vars)
    names = [v.name for v in source.vars]
    vars = [v for v in full_model.value_vars if v.name in names]
    total = source.log_prior + source.log_likelihood
    log_p, *prior_and_likelihood = average_over_batches(
        source, point, [total, *source.prior, *source.likelihood]
    )
    gradient = [
        p + lik
        for p, lik in zip(prior_and_likelihood[:k], prior_and_likelihood[k:], strict=True)
    ]
    expected, *full = evaluate(
        full_model, [full_model.logp(), *pytensor.grad(full_model.logp(), vars)], point
    )
    np.testing.assert_allclose(log_p, expected, rtol=rtol)
    full = dict(zip([v.name for v in vars], full, strict=True))
    scale = max(np.abs(np.concatenate([np.ravel(g) for g in full.values()])))
    for name, value in zip(names, gradient, strict=True):
        np.testing.assert_allclose(
            value, full[name], rtol=rtol, atol=rtol * scale, err_msg=name
        )


@pytest.mark.parametrize("name", MODELS)
def test_average_over_batches_is_the_full_gradient(name):
    model = MODELS[name]()
    source = gradient_source(model, model.value_vars, batch_size=5, **OPTIONS.get(name, {}))
    assert_unbiased(model, source)
