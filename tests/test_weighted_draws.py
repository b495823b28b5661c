"""Averages over draws of decreasing step sizes."""

import numpy as np
import pytest
import xarray as xr

import pymc_sgmcmc as sgm


@pytest.mark.slow(4)
def test_the_average_of_the_paper(regression):
    """(1 / S_T) sum eps_t phi(theta_t), of each chain and of all."""
    with regression:
        step = sgm.SGLD(
            step_size=sgm.PolynomialDecay(1e-3, 10.0, 0.6),
            batch_size=20,
            compile_kwargs={"mode": "JAX"},
        )
        idata = sgm.sample(50, tune=0, chains=2, step=step, random_seed=1, quiet=True)
    [name, *_] = idata.posterior.data_vars
    draws, eps = idata.posterior[name].values, idata.sample_stats["step_size"].values
    assert eps[0, -1] < eps[0, 0] / 2
    extra = (slice(None), slice(None), *[None] * (draws.ndim - 2))
    expected = (eps[extra] * draws).sum(axis=(0, 1)) / eps.sum()
    mean = sgm.weighted(idata).mean(["chain", "draw"])
    np.testing.assert_allclose(mean[name], expected)
    of_chains = sgm.weighted(idata, [name]).mean("draw")
    assert list(of_chains.data_vars) == [name]
    assert of_chains.sizes["chain"] == 2
    variance = (eps[extra] * (draws - expected) ** 2).sum(axis=(0, 1)) / eps.sum()
    np.testing.assert_allclose(sgm.weighted(idata).var(["chain", "draw"])[name], variance)


def result(**stats):
    posterior = xr.Dataset({"mu": (("chain", "draw"), np.zeros((1, 3)))})
    return xr.DataTree.from_dict({"/posterior": posterior, "/sample_stats": xr.Dataset(stats)})


def test_results_without_step_sizes():
    with pytest.raises(ValueError, match=r"one step_size per draw.*there is none"):
        sgm.weighted(result())
    two = (("chain", "draw", "sampler"), np.ones((1, 3, 2)))
    with pytest.raises(ValueError, match=r"its dims are.*sampler"):
        sgm.weighted(result(step_size=two))
    one = (("chain", "draw"), np.ones((1, 3)))
    with pytest.raises(KeyError, match="no variable 'nu'"):
        sgm.weighted(result(step_size=one), ["nu"])
    bare = xr.DataTree.from_dict({"/posterior": result()["posterior"].to_dataset()})
    with pytest.raises(ValueError, match="there is none"):
        sgm.weighted(bare)
