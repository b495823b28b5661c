"""The default call on regressions under priors that shrink, compared with NUTS.

    python benchmarks/shrinkage.py                    # half an hour
    python benchmarks/shrinkage.py --only logistic    # replaces this row

Writes benchmarks/results/shrinkage.txt. There are 5000 rows and 20 coefficients, of which 16 are 0.
NUTS is PyMC's, with 4 chains of 1000 draws after 1000 of tuning and target_accept=0.95. Each form
runs in its own process.
"""

import json

import numpy as np
import pymc as pm
from against_nuts import extremes, sample_both
from posterior_table import PosteriorTable
from pytensor.tensor.variable import TensorVariable

ROWS, COLUMNS = 5000, 20
TABLE = PosteriorTable(
    {
        "form": "<12",
        "error": ">5.2f",
        "sd low": ">7.2f",
        "sd high": ">8.2f",
        "updates": ">8.0f",
        "passes": ">7.0f",
        "s": ">5.0f",
        "NUTS s": ">7.0f",
        "NUTS ess": ">9.0f",
        "divergent": ">10.0f",
        "verdict": "<8",
    },
    texts=("form", "verdict"),
)
NOTES = """\
error: largest difference of the means of an element of a variable or a coefficient, in NUTS's sds,
with positive variables on the logarithmic scale; sd low, sd high: smallest and largest ratio of
sds. They are the extremes of about 60 elements, and contain the Monte Carlo errors of both: about
.06 and 5% for one element. updates: per draw; passes: over the data, in all; s: seconds with
compilation, one seed; NUTS ess: smallest of an element; divergent: transitions of NUTS."""


def prior(form: str) -> TensorVariable:
    """The coefficients, under the prior of a form."""
    if form == "own-scales":  # automatic relevance determination
        scale = pm.HalfCauchy("local", 0.5, shape=COLUMNS)
    elif form == "regularised":  # Piironen and Vehtari (2017)
        local, tau = pm.HalfStudentT("local", 5, 1, shape=COLUMNS), pm.HalfStudentT("tau", 2, 0.1)
        slab = pm.InverseGamma("slab", 2, 2)
        scale = tau * local * pm.math.sqrt(slab / (slab + tau**2 * local**2))
    elif form == "r2d2":  # shares of the variance that is explained (Zhang et al. 2022)
        r2, shares = pm.Beta("r2", 1, 1), pm.Dirichlet("shares", np.full(COLUMNS, 0.5))
        scale = pm.math.sqrt(shares * r2 / (1 - r2))
    else:
        local, tau = pm.HalfCauchy("local", 1, shape=COLUMNS), pm.HalfCauchy("tau", 0.1)
        scale = local * tau
    if form == "centred":
        return pm.Normal("beta", 0, scale, shape=COLUMNS)
    return pm.Deterministic("beta", pm.Normal("z", shape=COLUMNS) * scale)


def horseshoe(form: str) -> pm.Model:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(ROWS, COLUMNS))
    eta = X[:, :4] @ [1, -0.7, 0.5, 0.1]
    with pm.Model() as model:
        mean = pm.Normal("intercept") + X @ prior(form)
        if form == "logistic":
            pm.Bernoulli("y", logit_p=mean, observed=rng.binomial(1, 1 / (1 + np.exp(-eta))))
        else:
            pm.Normal("y", mean, pm.HalfNormal("sigma"), observed=rng.normal(eta + 0.5, 1))
    return model


FORMS = ("horseshoe", "centred", "regularised", "logistic", "own-scales", "r2d2")


def compare(form: str) -> dict:
    """Sample both ways; return a row of the table."""
    model = horseshoe(form)
    ours, nuts, seconds, seconds_of_nuts = sample_both(model, target_accept=0.95)
    adaptation = json.loads(ours.posterior.attrs["adaptation"])
    return {
        "form": form,
        **extremes(model, ours, nuts, [v.name for v in model.unobserved_RVs]),
        "updates": adaptation["thin"],
        "passes": float(ours.posterior.attrs["data_passes"]),
        "s": seconds,
        "NUTS s": seconds_of_nuts,
        "divergent": int(nuts.sample_stats["diverging"].sum()),
        "verdict": ours["diagnosis"].attrs["verdict"],
    }


if __name__ == "__main__":
    TABLE.main(__doc__, compare, list(FORMS), NOTES)
