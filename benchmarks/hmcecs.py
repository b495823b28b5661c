"""NumPyro's HMC with energy-conserving subsampling (HMCECS) of a logistic regression.

It has no interface to PyMC: the likelihood is written again in NumPyro, with the data and the prior
of the PyMC model. A leapfrog step evaluates `BATCH` rows and second-order Taylor expansions of all
rows' likelihoods about the mode, which Newton's method finds first.
"""

import numpy as np
import xarray as xr
from arviz_base import convert_to_dataset
from pymc.model import Model
from regressions import mode_of

BATCH = 200
"""Rows; the Hessians of a batch take BATCH^2 d^2 numbers."""
BLOCKS = 10
"""Parts of a batch, one of which is drawn anew for each transition."""
CHAINS = 4


def hmcecs(model: Model, seed: int) -> xr.DataTree:
    """Draws of a model with weights `w` of the columns `X`, and perhaps an intercept `b`.

    With NumPyro's defaults of NUTS, a thousand draws of each chain after as many of warm-up; passes
    are without warm-up.
    """
    import jax
    import numpyro
    from numpyro import distributions
    from numpyro.infer import HMCECS, MCMC, NUTS, init_to_value

    jax.config.update("jax_enable_x64", True)
    columns = model["X"].get_value()
    has_intercept = "b" in model.named_vars
    if has_intercept:
        columns = np.column_stack([columns, np.ones(len(columns))])
    _, sigma = model["w"].owner.op.dist_params(model["w"].owner)
    prior_sd = float(np.mean(sigma.eval()))
    y = model.rvs_to_values[model["y"]].data

    def regression(X, y):
        beta = numpyro.sample(
            "beta", distributions.Normal(0, prior_sd).expand([X.shape[1]]).to_event(1)
        )
        with numpyro.plate("rows", len(X), subsample_size=BATCH):
            rows = numpyro.subsample(X, event_dim=1)
            labels = numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", distributions.Bernoulli(logits=rows @ beta), obs=labels)

    mode, _ = mode_of(columns, y, prior_sd)
    at = {"beta": jax.numpy.asarray(mode)}
    inner = NUTS(regression, init_strategy=init_to_value(values=at))
    kernel = HMCECS(inner, num_blocks=BLOCKS, proxy=HMCECS.taylor_proxy(at))
    chains = MCMC(
        kernel,
        num_warmup=1000,
        num_samples=1000,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    chains.run(
        jax.random.key(seed),
        jax.numpy.asarray(columns),
        jax.numpy.asarray(y),
        extra_fields=("hmc_state.num_steps",),
    )
    beta = np.asarray(chains.get_samples(group_by_chain=True)["beta"])
    draws = {"w": beta[..., :-1], "b": beta[..., -1]} if has_intercept else {"w": beta}
    tree = xr.DataTree.from_dict({"posterior": convert_to_dataset(draws)})
    steps = float(chains.get_extra_fields()["hmc_state.num_steps"].sum())
    tree["posterior"].attrs["data_passes"] = steps * BATCH / len(y)
    return tree
