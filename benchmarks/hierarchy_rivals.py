"""Hierarchies of a thousand to a million groups: `sgm.sample` beside NUTS, ADVI and GPBoost.

    python benchmarks/hierarchy_rivals.py                  # some hours
    python benchmarks/hierarchy_rivals.py --cases intercepts-1000 --methods nutpie GPBoost

Writes benchmarks/results/hierarchy_rivals.txt, where new rows replace old ones. Every group has ten
rows. "intercepts": logistic regression with an intercept of each group; "slopes": with a slope too;
"crossed": normal rows, ten of each person, with effects of the persons and of 200 items. The data
are such that the exact density of what groups share is cheap: the covariate of the first two has
two values, so that the numbers of successes of a group take 36 values, each integrated by 41
Gauss-Hermite nodes per effect; of the third 200 equations are solved. Its moments are by importance
sampling.

The rivals are nutpie's NUTS and PyMC's mean-field ADVI with batches of 500 rows, both on the same
model, and GPBoost: maximum likelihood under Laplace's approximation, in C++. They need nutpie and
gpboost. Each method is a process of its own on one core; the second of two calls is timed.
"""

import argparse
import itertools
import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import rivals
import xarray as xr
from limited_calls import lines_of, timed
from posterior_table import PosteriorTable
from scipy import special, stats
from student_moments import mode_and_covariance, student_draws
from truth import Moments, errors

import pymc_sgmcmc as sgm

RESULTS = Path(__file__).parent / "results" / "hierarchy_rivals.txt"
ROWS = 10
"""Rows of a group."""
ITEMS = 200
PAIRS = 2000
"""Draws for the exact moments."""
NODES = 41
NUMBERS = 400_000_000
"""Numbers that ADVI's draws may have, up to its 4000 draws."""


class Hierarchy(NamedTuple):
    """Rows of groups, and the exact density of what these share."""

    x: np.ndarray
    """Covariate of the rows."""
    y: np.ndarray
    groups: dict[str, np.ndarray]
    """The group of each row, by the name of its effect."""
    effects: dict[str, np.ndarray]
    """Those that made the data; one in `slopes` is times x."""
    log_density: Callable[[np.ndarray], float]
    """Of flat parameters: coefficients and standard deviations, as they are."""
    start: np.ndarray
    names: tuple[str, ...]
    """Variables, one an element of the flat parameters."""

    @property
    def is_normal(self) -> bool:
        return "sigma" in self.names

    def model(self, batch_size: int | None = None) -> pm.Model:
        """As a user writes it; for ADVI with random batches of rows."""
        columns, total = [self.x, self.y, *self.groups.values()], None
        if batch_size:
            columns, total = pm.Minibatch(*columns, batch_size=batch_size), len(self.y)
        x, y, *groups = columns
        with pm.Model() as model:
            eta = pm.Normal("intercept", 0, 2.5) + pm.Normal("x", 0, 2.5) * x
            for name, group in zip(self.groups, groups, strict=True):
                sd = pm.HalfNormal(f"sd_{name}", 2)
                effect = pm.Normal(name, 0, sd, shape=len(self.effects[name]))[group]
                eta += effect * x if name == SLOPE else effect
            if self.is_normal:
                pm.Normal("y", eta, pm.HalfNormal("sigma", 2), observed=y, total_size=total)
            else:
                pm.Bernoulli("y", logit_p=eta, observed=y, total_size=total)
        return model


SLOPE = "slope"
COEFFICIENTS = ("intercept", "x")


def log_prior(v: np.ndarray) -> float:
    """Of intercept and coefficient, and of standard deviations, which are positive."""
    return stats.norm.logpdf(v[:2], 0, 2.5).sum() + stats.halfnorm.logpdf(v[2:], 0, 2).sum()


def exact_moments(hierarchy: Hierarchy) -> Moments:
    """Means and sds by importance sampling from a Student density around the mode.

    It reaches standard deviations of 0, of which the posterior may have a tail.
    """
    f, k = hierarchy.log_density, len(hierarchy.start)
    mode, covariance = mode_and_covariance(f, hierarchy.start, np.abs(hierarchy.start))
    draws, weights = student_draws(f, mode, 1.2 * covariance, df=5, pairs=PAIRS)
    assert 1 / np.square(weights).sum() > PAIRS / 2
    mean = weights @ draws
    sd = np.sqrt(weights @ (draws - mean) ** 2)
    names = hierarchy.names
    return Moments(*({names[i]: x[[i]] for i in range(k)} for x in (mean, sd)))


def binary(n_groups: int, has_slopes: bool) -> Hierarchy:
    """Half the rows of a group have x = -.5, the other half x = .5."""
    rng = np.random.default_rng(11)
    half = ROWS // 2
    group = np.repeat(np.arange(n_groups), ROWS)
    x = np.tile(np.repeat([-0.5, 0.5], half), n_groups)
    effects = {"level": rng.normal(0, 0.8, n_groups)}
    if has_slopes:
        effects[SLOPE] = rng.normal(0, 0.6, n_groups)
    eta = -0.5 + 0.7 * x + effects["level"][group]
    if has_slopes:
        eta += effects[SLOPE][group] * x
    y = rng.binomial(1, special.expit(eta)).astype(float)
    successes = y.reshape(n_groups, 2, half).sum(axis=2).astype(int)
    seen, count = np.unique(successes, axis=0, return_counts=True)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    log_weights = np.log(weights / weights.sum())

    def log_density(v):
        level = v[2] * nodes[:, None]
        slope = v[3] * nodes if has_slopes else np.zeros(1)
        of_slope = log_weights if has_slopes else np.zeros(1)
        log_p = log_weights[:, None] + of_slope
        log_p = np.broadcast_to(log_p, (len(seen), NODES, len(slope)))
        for k, value in enumerate([-0.5, 0.5]):
            eta = v[0] + level + (v[1] + slope) * value
            s = seen[:, k, None, None]
            log_p = log_p + s * eta - half * np.logaddexp(0, eta)
        return count @ special.logsumexp(log_p, axis=(1, 2)) + log_prior(v)

    names = (*COEFFICIENTS, *(f"sd_{name}" for name in effects))
    start = np.array([-0.5, 0.7, *[0.8, 0.6][: len(effects)]])
    return Hierarchy(x, y, dict.fromkeys(effects, group), effects, log_density, start, names)


def crossed(n_groups: int) -> Hierarchy:
    """Normal rows of persons, each with ten of the items."""
    rng = np.random.default_rng(12)
    person = np.repeat(np.arange(n_groups), ROWS)
    first, step = rng.integers(ITEMS, size=(2, n_groups, 1))
    items = (first + (1 + step % 20) * np.arange(ROWS)) % ITEMS  # ten different ones
    item = items.ravel()
    x = rng.normal(size=len(person))
    effects = {"person": rng.normal(0, 0.7, n_groups), "item": rng.normal(0, 0.4, ITEMS)}
    y = rng.normal(0.5 - 0.3 * x + effects["person"][person] + effects["item"][item], 1.0)
    # what the density needs of the rows: products of (y, 1, x), of persons and items
    V = np.column_stack([y, np.ones(len(y)), x])
    of_persons = V.reshape(n_groups, ROWS, 3).sum(axis=1)
    of_items = np.column_stack([np.bincount(item, v, ITEMS) for v in V.T])
    through_persons = np.column_stack(
        [np.bincount(item, np.repeat(v, ROWS), ITEMS) for v in of_persons.T]
    )
    squares, between = V.T @ V, of_persons.T @ of_persons
    together = np.zeros((ITEMS, ITEMS))
    for a, b in itertools.product(range(ROWS), repeat=2):
        together += np.bincount(items[:, a] * ITEMS + items[:, b], minlength=ITEMS**2).reshape(
            ITEMS, ITEMS
        )
    each = np.bincount(item, minlength=ITEMS)

    def log_density(v):
        s2, person2, item2 = v[[4, 2, 3]] ** 2
        c = person2 / (s2 + ROWS * person2)
        A = (np.diag(each) - c * together) / s2 + np.eye(ITEMS) / item2
        P = (of_items - c * through_persons) / s2
        R = np.array([1, -v[0], -v[1]])
        quadratic = (squares - c * between) / s2 - P.T @ np.linalg.solve(A, P)
        log_det = len(y) * np.log(s2) + n_groups * np.log1p(ROWS * person2 / s2)
        log_det += np.linalg.slogdet(A)[1] + ITEMS * np.log(item2)
        return -(log_det + R @ quadratic @ R) / 2 + log_prior(v)

    groups = {"person": person, "item": item}
    start = np.array([0.5, -0.3, 0.7, 0.4, 1.0])
    names = (*COEFFICIENTS, "sd_person", "sd_item", "sigma")
    return Hierarchy(x, y, groups, effects, log_density, start, names)


SIZES = (1000, 10_000, 100_000, 1_000_000)
CASES: dict[str, Callable[[], Hierarchy]] = {
    **{f"intercepts-{n}": lambda n=n: binary(n, False) for n in SIZES},
    **{f"slopes-{n}": lambda n=n: binary(n, True) for n in SIZES[:3]},
    **{f"crossed-{n}": lambda n=n: crossed(n) for n in SIZES[:3]},
}


# ---- methods: moments of what is shared, coverage of 90% intervals of the effects ---------------


def of_draws(tree: xr.DataTree, hierarchy: Hierarchy) -> dict:
    """Moments, coverage and the smallest effective sample size from a result of draws."""
    posterior, inside = tree["posterior"].to_dataset(), []
    for name, true in hierarchy.effects.items():
        if name in posterior:
            draws = posterior[name].values.reshape(-1, len(true))
            low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        else:  # for very many groups only their means and sds are kept
            mean = tree["effects"][f"{name}_mean"].values
            half = 1.645 * tree["effects"][f"{name}_sd"].values
            low, high = mean - half, mean + half
        inside.append(np.mean((low < true) & (true < high)))
    values = {name: posterior[name].values for name in hierarchy.names}
    return {
        "mean": {name: [float(x.mean())] for name, x in values.items()},
        "sd": {name: [float(x.std())] for name, x in values.items()},
        "coverage": min(inside),
        "ess": min(float(az.ess(posterior[[name]])[name]) for name in hierarchy.names),
    }


def by_sgm(hierarchy: Hierarchy) -> dict:
    """`sgm.sample` with its defaults."""
    with hierarchy.model():
        tree = sgm.sample(random_seed=1, progressbar=False, quiet=True)
    said = tree["diagnosis"].attrs["verdict"]
    return of_draws(tree, hierarchy) | {
        "said": said,
        "passes": float(tree["posterior"].attrs["data_passes"]),
    }


def by_nutpie(hierarchy: Hierarchy) -> dict:
    """NUTS with nutpie's defaults: six chains on one core."""
    tree = rivals.nutpie_nuts(hierarchy.model(), 1)
    return of_draws(tree, hierarchy) | {"passes": tree["posterior"].attrs["data_passes"]}


def by_advi(hierarchy: Hierarchy) -> dict:
    """Mean-field ADVI: 30,000 updates, or ten passes over the data where they are more."""
    size, n_rows = rivals.ADVI_BATCH, len(hierarchy.y)
    updates = max(rivals.ADVI_UPDATES, 10 * n_rows // size)
    elements = sum(map(len, hierarchy.effects.values()))
    fit = pm.fit(
        updates, method="advi", model=hierarchy.model(size), random_seed=1, progressbar=False
    )
    tree = fit.sample(min(rivals.N_DRAWS, NUMBERS // elements), random_seed=1)
    found = of_draws(tree, hierarchy) | {"passes": updates * size / n_rows}
    return found | {"ess": None}  # independent draws of an approximation


def by_gpboost(hierarchy: Hierarchy, **params: float) -> dict:
    """Maximum likelihood with Laplace's approximation; sds are its standard errors.

    ``params`` are of its optimizer.
    """
    import gpboost

    names = list(hierarchy.groups)
    has_slopes = SLOPE in names
    index = np.column_stack([hierarchy.groups[name] for name in names if name != SLOPE])
    slopes = {"group_rand_coef_data": hierarchy.x, "ind_effect_group_rand_coef": [1]}
    fit = gpboost.GPModel(
        group_data=index,
        **(slopes if has_slopes else {}),
        likelihood="gaussian" if hierarchy.is_normal else "bernoulli_logit",
        num_parallel_threads=1,
    )
    X = np.column_stack([np.ones(len(hierarchy.y)), hierarchy.x])
    fit.fit(y=hierarchy.y, X=X, params=params)
    coefficients = np.asarray(fit.get_coef(std_err=True, format_pandas=False))
    variances = np.atleast_2d(np.asarray(fit.get_cov_pars(std_err=False, format_pandas=False)))[0]
    mean = dict(zip(COEFFICIENTS, coefficients[0], strict=True))
    order = [*(["sigma"] if hierarchy.is_normal else []), *(f"sd_{name}" for name in names)]
    mean |= dict(zip(order, np.sqrt(variances), strict=True))
    sd = dict.fromkeys(hierarchy.names, np.nan) | dict(
        zip(COEFFICIENTS, coefficients[1], strict=True)
    )
    return {
        "mean": {name: [float(mean[name])] for name in hierarchy.names},
        "sd": {name: [float(sd[name])] for name in hierarchy.names},
        "coverage": None if hierarchy.is_normal else coverage_of_gpboost(fit, hierarchy),
    }


def coverage_of_gpboost(fit, hierarchy: Hierarchy) -> float:
    """Of its predictive intervals; crossed normal effects have none with its iterative solver."""
    effects = fit.predict_training_data_random_effects(predict_var=True)
    inside = []
    for k, (name, group) in enumerate(hierarchy.groups.items()):
        of_groups = effects.iloc[np.unique(group, return_index=True)[1]].to_numpy()
        centre, half = of_groups[:, k], 1.645 * np.sqrt(of_groups[:, k + len(hierarchy.groups)])
        inside.append(np.mean(np.abs(hierarchy.effects[name] - centre) < half))
    return min(inside)


METHODS = {
    "sgm.sample": by_sgm,
    "nutpie": by_nutpie,
    "ADVI": by_advi,
    "GPBoost": by_gpboost,
    "GPBoost 1e-12": partial(by_gpboost, delta_rel_conv=1e-12),
}
COLUMNS = {
    "case": "<18",
    "method": "<13",
    "first": ">7.1f",
    "CPU": ">7.1f",
    "passes": ">9.5g",
    "error": ">7.2f",
    "sd low": ">7.2f",
    "sd high": ">8.2f",
    "coverage": ">9.3f",
    "ess": ">6.0f",
    "said": "",
}
TABLE = PosteriorTable(COLUMNS, texts=("case", "method", "said"))
NOTES = """\
Ten rows a group. first: CPU seconds of the first call in a process, with compilation and empty
caches; CPU: of the second. passes: row gradients / N. error: largest |mean - true mean| / true sd
of what groups share (intercept, coefficient, sds); sd low, sd high: smallest and largest sd / true
sd, for GPBoost of the standard errors of the coefficients; coverage: of 90% intervals of the
effects, the lowest of their kinds; ess: smallest bulk effective sample size of what is shared.
GPBoost 1e-12: with delta_rel_conv=1e-12 in place of its default tolerance, for crossed effects.
Each method on one core; a call is ended after {limit:g} CPU seconds, and a method that was is not
tried with more groups."""


def measure(case: str, method: str, limit: float) -> None:
    """Both calls; a JSON line after each."""
    hierarchy = CASES[case]()
    true, first = exact_moments(hierarchy), None
    for _ in range(2):
        found, seconds = timed(lambda: METHODS[method](hierarchy), limit)
        own = Moments(*({v: np.array(x) for v, x in found.pop(m).items()} for m in Moments._fields))
        row = {"case": case, "method": method, "first": first or seconds} | found
        row |= errors_that_are_known(own, true)
        if first:
            row["CPU"] = seconds
        print(json.dumps(row, default=float), flush=True)
        first = seconds


def errors_that_are_known(own: Moments, true: Moments) -> dict[str, float]:
    """Errors of all means, and of the sds that are no nan."""
    row = errors(own, true)
    ratios = [float(own.sd[v][0] / true.sd[v][0]) for v in true.sd]
    return row | {"sd low": np.nanmin(ratios), "sd high": np.nanmax(ratios)}


def place(row: dict) -> tuple[int, int]:
    """Place in the table."""
    return list(CASES).index(row["case"]), list(METHODS).index(row["method"])


def ended_with_fewer(case: str, method: str, rows: list[dict]) -> bool:
    """Whether the method was ended on a smaller case of the same form."""
    form, n = case.split("-")
    return any(
        row["method"] == method
        and row["case"].split("-")[0] == form
        and int(row["case"].split("-")[1]) < int(n)
        and "ended" in (row.get("said") or "")
        for row in rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--limit", type=float, default=600, help="CPU seconds for a call")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        warnings.simplefilter("ignore")
        measure(*json.load(sys.stdin))
        return
    rows = TABLE.read(args.out, CASES)
    for case, method in itertools.product(args.cases, args.methods):
        if ended_with_fewer(case, method, rows):
            found, why = [], "ended with fewer groups"
        else:
            found, why = lines_of(__file__, [case, method, args.limit], args.limit)
        row = found[-1] if found else {"case": case, "method": method}
        if why:
            row["said"] = f"second call {why}" if found else why
        rows = [r for r in rows if (r["case"], r["method"]) != (case, method)] + [row]
        rows.sort(key=place)
        print(TABLE.line(row), flush=True)
        head = f"python benchmarks/hierarchy_rivals.py   ({time.strftime('%Y-%m-%d')}, "
        head += f"pymc {pm.__version__})"
        lines = [head, NOTES.format(limit=args.limit), "", TABLE.titles, *map(TABLE.line, rows)]
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
