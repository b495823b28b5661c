"""How often `diagnose` raises a false alarm, and how often it misses what is wrong.

    python benchmarks/verdicts.py             # the cases of groups take longest
    python benchmarks/verdicts.py --runs 5 --only "step x3"    # replaces this row of the table

Writes benchmarks/results/verdicts.txt, a row for each case: how many runs were judged "ok",
"failed" and "unclear", and how wrong they were: the medians over runs of the worst ratio of a
standard deviation to the right one and of the largest error of a mean, in standard deviations.
Both contain Monte Carlo error. The posteriors are a linear regression with known noise and means of
100 rows, whose posteriors are exact; a logistic regression, whose posterior is from importance
sampling; the 2000 groups of hierarchy.py with local effects: of these the mean ratio and the root
of the mean squared error stand for all; and the two models of group_posteriors.py, of which the
common scale is compared if their effects are sampled, and all that groups share if these are
integrated out, as by the default call.
"""

import argparse
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import group_posteriors
import hierarchy
import numpy as np
import pymc as pm
import xarray as xr
from pymc.util import get_state_from_generator
from scipy import special, stats
from truth import truth

import pymc_sgmcmc as sgm
from pymc_sgmcmc.integration.whether_to_integrate import terms_to_integrate
from pymc_sgmcmc.pymc_sampler_interface import StepSampler
from pymc_sgmcmc.run.parametrisation import Form
from pymc_sgmcmc.run.sample_arguments import Arguments
from pymc_sgmcmc.samplers.msgnht import MultivariateThermostatSymmetric
from pymc_sgmcmc.schedules import Constant

RESULTS = Path(__file__).parent / "results" / "verdicts.txt"
N, FEW_ROWS, D = 5000, 100, 6
DRAWS = 500


class Posterior(NamedTuple):
    """A model and the moments of its posterior."""

    model: pm.Model
    mean: np.ndarray
    covariance: np.ndarray

    def compared(self, draws: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
        """Ratios of standard deviations to the right ones, and errors of means in these."""
        beta = draws["beta"].values.reshape(-1, D)
        sd = np.sqrt(np.diag(self.covariance))
        return beta.std(axis=0) / sd, np.abs(beta.mean(axis=0) - self.mean) / sd


class GroupsPosterior(NamedTuple):
    """A hierarchy and the moments of its effects, mean and log scale."""

    model: pm.Model
    mean: list
    sd: list

    def standardised(self, draws: xr.Dataset) -> list[np.ndarray]:
        """Draws of all three, less their mean and in units of their standard deviation."""
        three = draws["a"].values, draws["mu"].values, np.log(draws["tau"].values)
        return [(v - m) / s for v, m, s in zip(three, self.mean, self.sd, strict=True)]

    def compared(self, draws: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
        """As of `Posterior`; the effects together."""
        each = self.standardised(draws)
        ratios = np.array([v.std(axis=(0, 1)).mean() for v in each])
        return ratios, np.array([np.sqrt(np.square(v.mean(axis=(0, 1))).mean()) for v in each])


def groups() -> GroupsPosterior:
    """The model of hierarchy.py as one writes it."""
    group, size, y = hierarchy.data()
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.LogNormal("tau", 0, 1)
        a = pm.Normal("a", mu, tau, shape=len(size))
        pm.Normal("y", a[group], 1, observed=y)
    return GroupsPosterior(model, *hierarchy.exact(group, size, y))


class CommonScale(NamedTuple):
    """A model of groups, and the moments of the scale of their effects."""

    model: pm.Model
    name: str
    mean: float
    sd: float

    def compared(self, draws: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
        """As of `Posterior`."""
        scale = draws[self.name].values.reshape(-1, 1)
        return scale.std(axis=0) / self.sd, np.abs(scale.mean(axis=0) - self.mean) / self.sd


def common_scale(name: str) -> CommonScale:
    """One of group_posteriors.py."""
    scale = group_posteriors.COMMON_SCALE[name]
    mean, sd = (float(moment[scale][0]) for moment in truth(name))
    return CommonScale(group_posteriors.POSTERIORS[name].model(), scale, mean, sd)


class Shared(NamedTuple):
    """A model of groups, and the moments of what these share, by variable."""

    model: pm.Model
    mean: dict[str, np.ndarray]
    sd: dict[str, np.ndarray]

    def compared(self, draws: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
        """As of `Posterior`."""
        ratios, off = [], []
        for name in self.mean.keys() & draws.keys():
            flat = draws[name].values.reshape(4 * DRAWS, -1)
            ratios.append(flat.std(axis=0) / self.sd[name])
            off.append(np.abs(flat.mean(axis=0) - self.mean[name]) / self.sd[name])
        return np.concatenate(ratios), np.concatenate(off)


def rows() -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(2024)
    correlated = np.linalg.cholesky(0.5 * np.eye(D) + 0.5)
    return rng.normal(size=(N, D)) @ correlated.T, np.linspace(-0.5, 0.5, D), rng


def linear() -> Posterior:
    X, beta, rng = rows()
    y = X @ beta + rng.normal(size=N)
    with pm.Model() as model:
        target = pm.Data("target", y)
        coefficients = pm.Normal("beta", 0, 3, shape=D)
        pm.Normal("y", X @ coefficients, 1, observed=target)
    covariance = np.linalg.inv(X.T @ X + np.eye(D) / 9)
    return Posterior(model, covariance @ X.T @ y, covariance)


@cache
def logistic() -> Posterior:
    X, beta, rng = rows()
    y = (rng.uniform(size=N) < special.expit(X @ beta)).astype(int)
    with pm.Model() as model:
        coefficients = pm.Normal("beta", 0, 3, shape=D)
        pm.Bernoulli("y", logit_p=X @ coefficients, observed=y)
    mode = np.zeros(D)
    for _ in range(20):
        p = special.expit(X @ mode)
        hessian = (X.T * (p * (1 - p))) @ X + np.eye(D) / 9
        mode += np.linalg.solve(hessian, X.T @ (y - p) - mode / 9)
    proposal = stats.multivariate_t(mode, np.linalg.inv(hessian), df=10, seed=1)
    away = proposal.rvs(50_000) - mode
    draws = mode + np.concatenate([away, -away])
    log_weights = -np.square(draws).sum(axis=1) / 18 - proposal.logpdf(draws)
    for some in np.array_split(np.arange(len(draws)), 50):  # all logits are 4 GB
        logits = draws[some] @ X.T
        log_weights[some] += (logits * y - np.logaddexp(0, logits)).sum(axis=1)
    weights = special.softmax(log_weights)
    mean = weights @ draws
    away = draws - mean
    return Posterior(model, mean, (weights[:, None] * away).T @ away)


AnyPosterior = Posterior | GroupsPosterior | CommonScale | Shared


class Result(NamedTuple):
    """A verdict, and how wrong the draws are."""

    verdict: str
    sd_ratio: float
    mean_error: float


def result_of(idata: xr.DataTree, posterior: AnyPosterior) -> Result:
    ratios, off = posterior.compared(idata["posterior"].to_dataset())
    worst = ratios[np.argmax(np.abs(np.log(ratios)))]
    return Result(idata["diagnosis"].attrs["verdict"], float(worst), float(off.max()))


def means() -> Posterior:
    """Of rows so few that a thermostat is long in rising to their noise in batches of 5.

    Their columns are uncorrelated, as thermostats of each element alone need it.
    """
    y = np.random.default_rng(1).normal(size=(FEW_ROWS, D))
    mean = y.mean(axis=0)
    y = mean + np.sqrt(FEW_ROWS) * np.linalg.qr(y - mean).Q
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=D)
        pm.Normal("y", beta, 1, observed=y)
    return Posterior(model, mean, np.eye(D) / FEW_ROWS)


def sampled(step, seed: int, draws: int = DRAWS, tune: int | None = None, **more) -> xr.DataTree:
    options = {"progressbar": False, "quiet": True, "chain_method": "vectorized"} | more
    return sgm.sample(
        draws, tune=tune, step=step, model=step.model, random_seed=seed, chains=4, **options
    )


# ---- the cases: a setting up, which gives a function of a seed -----------------------------------

Case = Callable[[], tuple[AnyPosterior, Callable[..., xr.DataTree]]]
"""Some functions take further arguments of `sampled`."""


def right(make: Callable[[], Posterior], factor: float = 1.0, draws: int = DRAWS, tune=None):
    def case():
        posterior = make()
        with posterior.model:
            step = sgm.MSGNHT_S(rng=1)
        step.schedule = Constant(factor * step.adapted.step_size)
        return posterior, lambda seed, **more: sampled(step, seed, draws, tune, **more)

    return case


def by_hand(sampler, make: Callable[[], Posterior] = linear, **arguments) -> Case:
    """A plain gradient in the metric of the warm-up, with a step size by hand."""

    def case():
        posterior = make()
        with posterior.model:
            step = sampler(adaptation="dense", gradient="plain", rng=1, **arguments)
        return posterior, lambda seed, **more: sampled(step, seed, **more)

    return case


def noise_ignored(make: Callable[[], Posterior]) -> Case:
    """A friction that does not absorb the noise of batches."""
    return by_hand(sgm.SGHMC_S, make, batch_size=100, step_size=0.05, thin=20)


def thermostats(draws: int, tune: int) -> Case:
    """Everything by hand, from the posterior's mean: thermostats rise from 1 to 16."""

    def case():
        posterior = means()
        with posterior.model:
            step = sgm.MSGNHT_S(step_size=0.15 / FEW_ROWS**0.5, batch_size=5, thin=10)

        def run(seed):
            start = {"beta": posterior.mean}
            idata = sampled(step, seed, draws, tune, initvals=start)
            sgm.diagnose(idata, posterior.model)
            return idata

        return posterior, run

    return case


def exact_draws():
    posterior = linear()
    return posterior, lambda seed: judged(posterior, independent(posterior, seed))


def independent(posterior: Posterior, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.multivariate_normal(posterior.mean, posterior.covariance, size=(4, DRAWS))


def judged(posterior: Posterior, draws: np.ndarray) -> xr.DataTree:
    idata = xr.DataTree.from_dict(
        {"/posterior": xr.Dataset({"beta": (("chain", "draw", "dim"), draws)})}
    )
    sgm.diagnose(idata, posterior.model)
    return idata


def shared_streams():
    """All chains have the same generator: batches, momentum and noise."""
    posterior = linear()
    with posterior.model:
        step = sgm.MSGNHT_S(rng=1)

    def run(seed):
        rng = np.random.default_rng(seed)
        starts = [step.adapted.jittered_start(step.kernel, rng) for _ in range(4)]
        sampler = StepSampler(step, chain_method="sequential")
        return sampler.sample_from_init(
            model=posterior.model,
            draws=DRAWS,
            tune=50,
            chains=4,
            initvals=starts,
            random_seed=[get_state_from_generator(np.random.default_rng(seed))] * 4,
            progressbar=False,
        )

    return posterior, run


def wrong_anchor_gradient(make: Callable[[], Posterior]) -> Case:
    """Off by what moves the mean by half a standard deviation."""

    def case():
        posterior = make()
        with posterior.model:
            step = sgm.MSGNHT_S(rng=1)
        move_anchor_gradient(step)
        return posterior, lambda seed, **more: sampled(step, seed, **more)

    return case


def move_anchor_gradient(step) -> None:
    size = step.kernel.metric.size
    matrix = step.kernel.metric.times(np.eye(size)).T
    shift = np.linalg.solve(matrix.T, 0.5 * np.ones(size))
    wrong = step.adapted.anchor_gradient + shift
    step.adapted = replace(step.adapted, anchor_gradient=wrong)
    step.adapted.apply(step.kernel)


def changed_data():
    """`pm.set_data` after the step was made, whose own check is switched off.

    The result is compared with the new posterior.
    """
    old = linear()
    with old.model:
        step = sgm.MSGNHT_S(rng=1)
        X, beta, _ = rows()
        y = X @ beta + np.random.default_rng(5).normal(size=N)
        pm.set_data({"target": y})
        step.kernel.data_checksum = None
    posterior = old._replace(mean=old.covariance @ X.T @ y)
    return posterior, lambda seed: sampled(step, seed)


def unvisited_mode():
    """Exact draws of one of two equal modes, 20 standard deviations apart."""
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=D, initval=np.full(D, 10.0))
        pm.Potential(
            "modes", pm.math.logaddexp(-((beta + 10) ** 2).sum() / 2, -((beta - 10) ** 2).sum() / 2)
        )
        pm.Normal("y", 0, 1, observed=np.zeros(3))
    posterior = Posterior(model, np.zeros(D), 101 * np.eye(D))
    one = posterior._replace(mean=np.full(D, 10.0), covariance=np.eye(D))
    return posterior, lambda seed: judged(posterior, independent(one, seed))


def right_groups(factor: float = 1.0) -> Case:
    """The warm-up's settings, but for the step size."""

    def case():
        posterior = groups()
        with posterior.model:
            step = sgm.MSGNHT_S(local=["a"], rng=1)
        step.schedule = Constant(factor * step.adapted.step_size)
        return posterior, lambda seed: sampled(step, seed)

    return case


@dataclass(frozen=True)
class LightThermostats(MultivariateThermostatSymmetric):
    """Those of groups too have the mass 1."""

    def for_groups(self):
        return self


class WithLightThermostats(sgm.MSGNHT_S):
    """The step that was the default before."""

    algorithm_class = LightThermostats


def binary_groups(name: str, sampler=sgm.MSGNHT_S) -> Case:
    """Everything adapted."""

    def case():
        posterior = common_scale(name)
        with posterior.model:
            step = sampler(rng=1)
        return posterior, lambda seed: sampled(step, seed)

    return case


def integrated(name: str, factor: float = 1.0, wrong_anchor: bool = False) -> Case:
    """The effects are integrated out; the warm-up's settings, but for the step size."""

    def case():
        mean, sd = truth(name)
        model = group_posteriors.POSTERIORS[name].model()
        groups = terms_to_integrate(model, "auto", None, predicts=False)
        form = Form.of(Arguments(model=model, idata_kwargs={}), groups)
        _, step = form.warmed_up(np.random.default_rng(1), None)
        step.schedule = Constant(factor * step.adapted.step_size)
        if wrong_anchor:
            move_anchor_gradient(step)

        def run(seed, **more):
            # As `sample` does; far draws of the run before may have moved the points of integrals.
            step.model.settle(step.adapted.anchor)
            step.kernel.data_checksum = step.kernel.checksum()
            return sampled(step, seed, **more)

        return Shared(step.model, mean, sd), run

    return case


def exact_groups(spread: float = 1.0) -> Case:
    """Independent draws of the posterior, the effects' distances from their mean times `spread`."""

    def case():
        posterior = groups()
        group, size, y = hierarchy.data()

        def run(seed):
            a, mu, t = hierarchy.draws(group, size, y, 4 * DRAWS, seed)
            a = posterior.mean[0] + spread * (a - posterior.mean[0])
            columns = {"a": a, "mu": mu, "tau": np.exp(t)}
            variables = {
                name: (("chain", "draw", "group")[: 1 + v.ndim], v.reshape(4, DRAWS, *v.shape[1:]))
                for name, v in columns.items()
            }
            idata = xr.DataTree.from_dict({"/posterior": xr.Dataset(variables)})
            sgm.diagnose(idata, posterior.model)
            return idata

        return posterior, run

    return case


CASES: dict[str, Case] = {
    "exact independent draws": exact_draws,
    "right, linear": right(linear),
    "right, logistic": right(logistic),
    "step x2": right(logistic, 2),
    "step x3": right(logistic, 3),
    "step x5": right(logistic, 5),
    "friction held, noise ignored": noise_ignored(linear),
    "too small a batch": by_hand(sgm.MSGNHT_S, batch_size=4, step_size=0.1, thin=50),
    "by hand, burnt in": thermostats(3000, 600),
    "by hand, not burnt in": thermostats(200, 0),
    "chains share all random numbers": shared_streams,
    "too few draws (4 x 20)": right(linear, draws=20, tune=0),
    "wrong gradient at the anchor": wrong_anchor_gradient(linear),
    "data changed after the warm-up": changed_data,
    "a mode never visited": unvisited_mode,
    "groups, exact draws": exact_groups(),
    "groups, effects 1.1 x too wide": exact_groups(1.1),
    "groups, right": right_groups(),
    "groups, step x3": right_groups(3),
    "groups, step x5": right_groups(5),
    "integrated, right": integrated("groups-intercepts"),
    "integrated, step x3": integrated("groups-intercepts", 3),
    "integrated, step x5": integrated("groups-intercepts", 5),
    "integrated, wrong gradient at a": integrated("groups-intercepts", wrong_anchor=True),
    "integrated rasch, right": integrated("groups-rasch"),
    "groups-intercepts, right": binary_groups("groups-intercepts"),
    "groups-intercepts, mass 1": binary_groups("groups-intercepts", WithLightThermostats),
    "groups-rasch, right": binary_groups("groups-rasch"),
    "groups-rasch, mass 1": binary_groups("groups-rasch", WithLightThermostats),
}


TITLES = f"{'case':32} {'runs':>4} {'ok':>4} {'failed':>6} {'unclear':>7} {'sd':>5} {'mean':>5}"


def rows_of(chosen: list[str], runs: int) -> Iterator[tuple[str, str]]:
    """Cases and their rows of the table."""
    for name in chosen:
        posterior, run = CASES[name]()
        results = [result_of(run(seed), posterior) for seed in range(1, runs + 1)]
        counts = [sum(r.verdict == v for r in results) for v in ("ok", "failed", "unclear")]
        sd = np.median([r.sd_ratio for r in results])
        mean = np.median([r.mean_error for r in results])
        ok, failed, unclear = counts
        yield name, f"{name:32} {runs:4d} {ok:4d} {failed:6d} {unclear:7d} {sd:5.2f} {mean:5.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--only", nargs="+", choices=list(CASES))
    parser.add_argument("--verbose", action="store_true", help="show messages of the runs")
    arguments = parser.parse_args()
    if not arguments.verbose:
        logging.getLogger("pymc").setLevel("ERROR")
    known = {line[:32].strip(): line for line in RESULTS.read_text("utf-8").splitlines()}
    print(TITLES)
    for name, row in rows_of(arguments.only or list(CASES), arguments.runs):
        print(row, flush=True)
        known[name] = row
        lines = [TITLES, *(known[case] for case in CASES if case in known)]
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
