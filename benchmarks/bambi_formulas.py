"""Bambi formulas with groups, fitted by the default call and by NUTS.

    python benchmarks/bambi_formulas.py                         # three quarters of an hour
    python benchmarks/bambi_formulas.py --only censored hsgp    # replaces these rows

Writes benchmarks/results/bambi_formulas.txt. The table has 150 groups with 4 to 12 rows, 1219 in
all, and 40 groups that cross them; outcomes of many families share a predictor and effects of the
groups. Each formula runs in its own process, once within `sgm.instead_of_nuts(ess=400)` and once as
Bambi fits it, with 4 chains of 1000 draws after 1000 of tuning. Priors are Bambi's.
"""

import time
from typing import NamedTuple

import arviz as az
import bambi as bmb
import numpy as np
import pandas as pd
from posterior_table import PosteriorTable
from xarray import Dataset

import pymc_sgmcmc as sgm

GROUPS, CROSSING = 150, 40
LARGEST_SHARED = 30
"""Elements of variables that count as shared; larger ones are effects."""


def table() -> pd.DataFrame:
    """Rows with outcomes of many families; "g" and "h" are the groups, x, z and k predictors."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(GROUPS), rng.integers(4, 13, GROUPS))
    n = len(group)
    crossing = rng.integers(0, CROSSING, n)
    x, z = rng.normal(size=n), rng.normal(size=n)
    level = rng.normal(0, 0.6, GROUPS)[group]
    slope = rng.normal(0, 0.4, GROUPS)[group]
    of_crossing = rng.normal(0, 0.5, CROSSING)[crossing]
    k = rng.integers(0, 3, n)
    eta = 0.3 + 0.5 * x + level
    p = 1 / (1 + np.exp(-(eta + of_crossing)))
    noise = np.exp(-0.2 + 0.3 * x) * rng.normal(size=n)
    rows = {
        "x": x,
        "z": z,
        "g": [f"g{i}" for i in group],
        "h": [f"h{i}" for i in crossing],
        "k": [f"k{i}" for i in k],
        "level": eta + slope * x + of_crossing + noise,
        "amount": rng.gamma(3, np.exp(eta + slope * x) / 3),
        "count": rng.negative_binomial(2, 2 / (2 + np.exp(eta))),
        "visits": rng.poisson(np.exp(eta)) * (rng.random(n) < 1 / (1 + np.exp(-(1 + 0.5 * z)))),
        "grade": np.digitize(eta + rng.logistic(size=n), [-1, 0.5, 1.5]),
        "share": np.clip(rng.beta(8 * p, 8 * (1 - p)), 1e-4, 1 - 1e-4),
        "trials": rng.integers(1, 15, n),
        "event": rng.binomial(1, p),
        "weight": rng.integers(1, 4, n),
        "heavy": eta + 0.5 * rng.standard_t(4, n),
        "curve": np.sin(2 * x) + level + 0.5 * rng.normal(size=n),
    }
    rows["grade"] = pd.Categorical(rows["grade"], ordered=True)
    rows["passed"] = rng.binomial(rows["trials"], p)
    rows["spent"] = rows["amount"] * (rng.random(n) < 0.7)
    scores = np.exp(np.stack([np.zeros(n), eta, -0.3 * x + level], axis=1))
    chosen = [rng.choice(3, p=row / row.sum()) for row in scores]
    rows["choice"] = pd.Categorical([f"c{c}" for c in chosen])
    time_to_event = rng.weibull(1.5, n) * np.exp(eta)
    end = rng.exponential(4, n)
    rows["time"] = np.minimum(time_to_event, end)
    rows["status"] = np.where(time_to_event < end, "none", "right")
    return pd.DataFrame(rows)


class Regression(NamedTuple):
    """What Bambi is given."""

    formula: tuple[str, ...]
    """The formula, and those of other parameters of the family."""
    family: str
    link: str | None = None

    def model(self, data: pd.DataFrame) -> bmb.Model:
        """Make the model of these rows."""
        return bmb.Model(bmb.Formula(*self.formula), data, family=self.family, link=self.link)

    @property
    def text(self) -> str:
        """The formulas and the family, for a table."""
        return f"{', '.join(self.formula)}   {self.family}"


REGRESSIONS = {
    "distributional": Regression(("level ~ x + (1|g)", "sigma ~ x"), "gaussian"),
    "sigma_groups": Regression(("level ~ x + (1|g)", "sigma ~ x + (1|g)"), "gaussian"),
    "cells": Regression(("level ~ 0 + k + (0 + k|g)",), "gaussian"),
    "nested": Regression(("level ~ x + (1|h/g)",), "gaussian"),
    "weighted": Regression(("weighted(level, weight) ~ x + (1|g)",), "gaussian"),
    "spline": Regression(("curve ~ bs(x, df=6) + (1|g)",), "gaussian"),
    "hsgp": Regression(("curve ~ hsgp(x, m=10, c=2) + (1|g)",), "gaussian"),
    "student": Regression(("heavy ~ x + (1|g)",), "t"),
    "quantile": Regression(("level ~ x + (1|g)",), "asymmetriclaplace"),
    "gamma_slopes": Regression(("amount ~ x + (x|g)",), "gamma", "log"),
    "hurdle_gamma": Regression(("spent ~ x + (1|g)",), "hurdle_gamma", "log"),
    "censored": Regression(("censored(time, status) ~ x + (1|g)",), "weibull", "log"),
    "beta_crossed": Regression(("share ~ x + (1|g) + (1|h)",), "beta"),
    "interaction": Regression(("event ~ x * k + z + (x + z|g) + (1|h)",), "bernoulli"),
    "binomial": Regression(("p(passed, trials) ~ x + (1|g)",), "binomial"),
    "beta_binomial": Regression(("p(passed, trials) ~ x + (1|g)",), "beta_binomial"),
    "offset": Regression(("count ~ x + offset(z * 0.1) + (1|g)",), "poisson"),
    "negative_binomial": Regression(("count ~ x + (1|g)", "alpha ~ z"), "negativebinomial"),
    "zero_inflated": Regression(("visits ~ x + (1|g)", "psi ~ z"), "zero_inflated_poisson"),
    "cumulative": Regression(("grade ~ x + (1|g)",), "cumulative"),
    "stopping_ratio": Regression(("grade ~ x + (1|g)",), "sratio"),
    "categorical": Regression(("choice ~ x + (1|g)",), "categorical"),
}


def elements(posterior: Dataset, name: str) -> np.ndarray:
    """The draws of a variable, shape (draws of all chains, elements)."""
    values = posterior[name].transpose("chain", "draw", ...).values
    return values.reshape(values.shape[0] * values.shape[1], -1)


def compare(name: str) -> dict:
    """Fit both ways, and return a row of the table."""
    regression = REGRESSIONS[name]
    model = regression.model(table())
    began = time.perf_counter()
    with sgm.instead_of_nuts(ess=400):
        ours = model.fit(random_seed=1, progressbar=False)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    nuts = model.fit(draws=1000, tune=1000, chains=4, cores=1, random_seed=2, progressbar=False)
    seconds_of_nuts = time.perf_counter() - began
    own, other = ours.posterior.to_dataset(), nuts.posterior.to_dataset()
    errors, ratios, sizes = [], [], []
    for variable in other.data_vars:
        right = elements(other, variable)
        moves = right.std(axis=0) > 1e-9  # sums to zero are Bambi's for some families
        if right.shape[1] > LARGEST_SHARED or not moves.any():
            continue
        found, right = elements(own, variable)[:, moves], right[:, moves]
        errors += list(np.abs(found.mean(axis=0) - right.mean(axis=0)) / right.std(axis=0))
        ratios += list(found.std(axis=0) / right.std(axis=0))
        sizes.append(float(az.ess(other[[variable]])[variable].min()))
    return {
        "formula": name,
        "verdict": ours["diagnosis"].attrs["verdict"],
        "error": max(errors),
        "sd low": min(ratios),
        "sd high": max(ratios),
        "NUTS ess": min(sizes),
        "div": int(nuts.sample_stats["diverging"].sum()),
        "s": seconds,
        "NUTS s": seconds_of_nuts,
        "as Bambi reads it": regression.text,
    }


TABLE = PosteriorTable(
    {
        "formula": "<17",
        "verdict": "<8",
        "error": ">5.2f",
        "sd low": ">7.2f",
        "sd high": ">8.2f",
        "NUTS ess": ">9.0f",
        "div": ">4.0f",
        "s": ">4.0f",
        "NUTS s": ">7.0f",
        "as Bambi reads it": "<",
    },
    texts=("formula", "verdict", "as Bambi reads it"),
)
NOTES = """\
error: largest difference of the means of a shared variable, in NUTS's sds; sd low, sd high: the
smallest and largest ratio of sds. Ours have effective sample sizes of 400 or more, and "NUTS ess"
is the smallest of NUTS, so that a difference of means has a Monte Carlo error of about .06. div:
divergences of NUTS. s: seconds with compilation, on one core of two, with empty caches of
compiled code at the beginning."""

if __name__ == "__main__":
    TABLE.main(__doc__, compare, list(REGRESSIONS), NOTES)
