"""The posterior that the a9a example is compared with, by NUTS on all 32561 rows.

NUTS uses a dense metric, the inverse Hessian at the mode: the posterior's scales differ by more
than a hundred, and a diagonal metric would need trajectories of hundreds of gradients.
"""

import arviz as az
import numpy as np
import pymc as pm
from common import RESULTS
from datasets import load_a9a
from pymc.step_methods.hmc.quadpotential import QuadPotentialFull
from scipy.optimize import minimize
from scipy.special import expit

FILE = RESULTS / "a9a_nuts.npz"


def build_model(X, y, variance=10.0):
    """Logistic regression with N(0, variance) priors on weights and intercept."""
    with pm.Model(coords={"feature": np.arange(X.shape[1])}) as model:
        features = pm.Data("X", X, dims=("row", "feature"))
        w = pm.Normal("w", 0, np.sqrt(variance), dims="feature", initval=np.zeros(X.shape[1]))
        b = pm.Normal("b", 0, np.sqrt(variance), initval=0.0)
        pm.Bernoulli("y", logit_p=features @ w + b, observed=y, dims="row")
    return model


def laplace(X, y, variance=10.0):
    """Mode (w, b) and covariance of the normal approximation there."""
    Z = np.column_stack([X, np.ones(len(X))])

    def objective(beta):
        eta = Z @ beta
        value = np.logaddexp(0, eta).sum() - y @ eta + beta @ beta / (2 * variance)
        return value, Z.T @ (expit(eta) - y) + beta / variance

    def hessian(beta):
        p = expit(Z @ beta)
        return (Z * (p * (1 - p))[:, None]).T @ Z + np.eye(len(beta)) / variance

    beta = np.zeros(Z.shape[1])
    found = minimize(objective, beta, jac=True, hess=hessian, method="trust-exact")
    return found.x, np.linalg.inv(hessian(found.x))


def run(draws=750, tune=200, chains=2, seed=1) -> dict[str, np.ndarray]:
    """Sample, save means and covariance of (w, b) to `FILE` and return them."""
    X, y, *_ = load_a9a()
    mode, covariance = laplace(X, y)
    start = {"w": mode[:-1], "b": mode[-1]}
    with build_model(X, y):
        step = pm.NUTS(potential=QuadPotentialFull(covariance))
        idata = pm.sample(
            draws,
            tune=tune,
            chains=chains,
            cores=chains,
            step=step,
            initvals=start,
            random_seed=seed,
        )
    summary = az.summary(idata, round_to="none")
    posterior = idata.posterior
    w, b = posterior["w"].values, posterior["b"].values
    all_draws = np.concatenate([w, b[..., None]], axis=-1).reshape(-1, len(mode))
    reference = {
        "mean": all_draws.mean(axis=0),
        "covariance": np.cov(all_draws.T),
        "laplace_mean": mode,
        "laplace_covariance": covariance,
        "min_ess_bulk": np.asarray(float(summary["ess_bulk"].astype(float).min())),
        "max_rhat": np.asarray(float(summary["r_hat"].astype(float).max())),
        "divergences": np.asarray(int(idata.sample_stats["diverging"].sum())),
        "command": np.asarray(
            f"python examples/logistic_regression_a9a.py --nuts  # {chains} chains x {draws} draws "
            f"after {tune}, seed {seed}, pymc {pm.__version__}"
        ),
    }
    FILE.parent.mkdir(parents=True, exist_ok=True)
    np.savez(FILE, **reference)
    return reference
