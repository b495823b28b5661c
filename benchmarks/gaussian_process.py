"""The default call on Gaussian processes by `pm.gp.HSGP`, compared with their exact posteriors.

    python benchmarks/gaussian_process.py                        # a quarter of an hour
    python benchmarks/gaussian_process.py --only ExpQuad-sine-5000    # replaces this row

Writes benchmarks/results/gaussian_process.txt. The rows are normal, so the coefficients of the
basis functions are integrated out exactly, and the three other parameters are drawn by random-walk
Metropolis. Each case runs in its own process.
"""

import json
import time

import numpy as np
import pymc as pm
from posterior_table import PosteriorTable
from scipy import stats

import pymc_sgmcmc as sgm

BASIS, C = 25, 1.5
SIGMA = 0.3
STEPS = 40_000
COVARIANCES = {"ExpQuad": pm.gp.cov.ExpQuad, "Matern52": pm.gp.cov.Matern52}
SIGNALS = {
    "sine": np.sin,
    "waves": lambda t: np.sin(4 * t),
    "line": lambda t: 0.3 * t - 1.5,
    "nothing": np.zeros_like,
}
CASES = [
    f"{covariance}-{signal}-{n}"
    for covariance in COVARIANCES
    for signal in SIGNALS
    for n in (300, 5000)
]
TABLE = PosteriorTable(
    {
        "case": "<24",
        "error": ">6.2f",
        "sd low": ">7.2f",
        "sd high": ">8.2f",
        "updates": ">8.0f",
        "passes": ">8.0f",
        "s": ">5.0f",
        "verdict": "<8",
    },
    texts=("case", "verdict"),
)
NOTES = """\
error: largest error of the means of log ell, log eta and log sigma, in posterior standard
deviations; sd low, sd high: smallest and largest ratio of their standard deviations. Both contain
Monte Carlo error: .05 and 4%. updates: per draw; passes: over the data, in all; s: seconds with
compilation, one seed."""


class Process:
    """Rows of a signal with noise, and the posterior of a Gaussian process on them."""

    def __init__(self, case: str):
        self.covariance, signal, n = case.split("-")
        rng = np.random.default_rng(5)
        self.x = np.sort(rng.uniform(0, 10, int(n)))
        self.y = rng.normal(SIGNALS[signal](self.x), SIGMA)

    def model(self) -> pm.Model:
        with pm.Model() as model:
            ell, eta = pm.InverseGamma("ell", 3, 3), pm.HalfNormal("eta", 1)
            covariance = eta**2 * COVARIANCES[self.covariance](1, ls=ell)
            f = pm.gp.HSGP(m=[BASIS], c=C, cov_func=covariance).prior("f", X=self.x[:, None])
            pm.Normal("y", f, pm.HalfNormal("sigma", 1), observed=self.y)
        return model

    def exact(self, start: np.ndarray) -> np.ndarray:
        """Draws of log ell, log eta and log sigma, shape (draws, 3)."""
        middle, half = (self.x.max() + self.x.min()) / 2, C * (self.x.max() - self.x.min()) / 2
        w = np.arange(1, BASIS + 1) * np.pi / (2 * half)
        basis = np.sin(w * (self.x[:, None] - middle + half)) / np.sqrt(half)
        gram, projected, squares = basis.T @ basis, basis.T @ self.y, self.y @ self.y

        def spectral_density(ell: float, eta: float) -> np.ndarray:
            if self.covariance == "ExpQuad":
                return eta**2 * np.sqrt(2 * np.pi) * ell * np.exp(-((ell * w) ** 2) / 2)
            return eta**2 * 16 / 3 * 5**2.5 / ell**5 * (5 / ell**2 + w**2) ** -3

        def log_p(u: np.ndarray) -> float:
            ell, eta, sigma = np.exp(u)
            d = np.sqrt(spectral_density(ell, eta))
            factor = np.linalg.cholesky(np.eye(BASIS) + d[:, None] * gram * d / sigma**2)
            solved = np.linalg.solve(factor, d * projected) / sigma**2
            log_p = solved @ solved / 2 - squares / sigma**2 / 2 - np.log(np.diag(factor)).sum()
            log_p -= len(self.y) * np.log(sigma) + (eta**2 + sigma**2) / 2
            return log_p + stats.invgamma(3, scale=3).logpdf(ell) + u.sum()

        rng = np.random.default_rng(1)
        u, now, draws = start, log_p(start), []
        factor = np.diag([0.1, 0.1, 0.01])
        for k in range(STEPS):
            if k in (2000, 5000):
                recent = np.array(draws[-1500:])
                factor = 2.38 / np.sqrt(3) * np.linalg.cholesky(np.cov(recent.T))
            proposed = u + factor @ rng.standard_normal(3)
            then = log_p(proposed)
            if np.log(rng.random()) < then - now:
                u, now = proposed, then
            draws.append(u)
        return np.array(draws[8000:])


def compare(case: str) -> dict:
    process = Process(case)
    began = time.perf_counter()
    with process.model():
        tree = sgm.sample(random_seed=1, progressbar=False)
    seconds = time.perf_counter() - began
    ours = [np.log(tree.posterior[name].to_numpy().ravel()) for name in ("ell", "eta", "sigma")]
    exact = process.exact(np.mean(ours, axis=1))
    mean, sd = exact.mean(axis=0), exact.std(axis=0)
    ratios = np.std(ours, axis=1) / sd
    return {
        "case": case,
        "error": np.abs((np.mean(ours, axis=1) - mean) / sd).max(),
        "sd low": ratios.min(),
        "sd high": ratios.max(),
        "updates": json.loads(tree.posterior.attrs["adaptation"])["thin"],
        "passes": float(tree.posterior.attrs["data_passes"]),
        "s": seconds,
        "verdict": tree["diagnosis"].attrs["verdict"],
    }


if __name__ == "__main__":
    TABLE.main(__doc__, compare, CASES, NOTES)
