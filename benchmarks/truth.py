"""Means and sds of the posteriors that `default_call.py` is compared on.

    python benchmarks/truth.py                   # a quarter of an hour
    python benchmarks/truth.py --only pima       # one of them

Writes benchmarks/results/truth/<posterior>.txt, for the posteriors that come without draws:
logistic regressions with N(0, 10) priors (variance) on standardised predictors, and those of
posteriordb that have the data only. By PyMC's NUTS on all rows, dense metric. Those of
group_posteriors.py are by quadrature, of the shared parameters only. The truth of the others is the
reference draws of posteriordb, and examples/results/a9a_nuts.npz for a9a.
"""

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import arviz as az
import group_posteriors
import numpy as np
import posteriordb
import pymc as pm
import xarray as xr
from a9a_nuts import FILE as A9A
from a9a_nuts import build_model, laplace
from datasets import load_a9a, load_australian, load_caravan, load_pima
from pymc.model import Model
from pymc.step_methods.hmc.quadpotential import QuadPotentialFull
from scipy.special import softmax
from threadpoolctl import threadpool_limits

RESULTS = Path(__file__).parent / "results" / "truth"
LOGISTIC: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "australian": load_australian,
    "pima": load_pima,
    "caravan": load_caravan,
}
CENTRED = "radon_mn-radon_hierarchical_centered"
"""The same posterior as without centring, and sampled only so."""
BY_NUTS: dict[str, Callable[[], Model]] = {
    **{name: lambda load=load: build_model(*load()) for name, load in LOGISTIC.items()},
    **{name: model for name, model in posteriordb.WITHOUT_DRAWS.items() if name != CENTRED},
}
BY_QUADRATURE = {name: case.model for name, case in group_posteriors.POSTERIORS.items()}
POSTERIORS: dict[str, Callable[[], Model]] = {
    **posteriordb.WITH_DRAWS,
    **BY_NUTS,
    **posteriordb.WITHOUT_DRAWS,
    "a9a": lambda: build_model(*load_a9a()[:2]),
    **BY_QUADRATURE,
}
"""All models, by name."""


class Moments(NamedTuple):
    """Mean and sd of each element of each variable: arrays of the variables' shapes, flat."""

    mean: dict[str, np.ndarray]
    sd: dict[str, np.ndarray]


def moments(draws: dict[str, np.ndarray]) -> Moments:
    """Of draws by variable: shapes (draws,) or (draws, elements)."""
    flat = {name: x.reshape(len(x), -1) for name, x in draws.items()}
    return Moments(
        {name: x.mean(axis=0) for name, x in flat.items()},
        {name: x.std(axis=0) for name, x in flat.items()},
    )


def moments_of(posterior: xr.Dataset, log_weights: np.ndarray | None = None) -> Moments:
    """Of draws with dimensions chain and draw, which may have weights of shape (chains, draws)."""
    draws = posterior.stack(sample=("chain", "draw"), create_index=False)
    flat = {v: x.transpose("sample", ...).values for v, x in draws.items()}
    if log_weights is None:
        return moments(flat)
    return weighted_moments(flat, softmax(log_weights.ravel()))


def weighted_moments(draws: dict[str, np.ndarray], weights: np.ndarray) -> Moments:
    """Of draws by variable, shapes (draws,) or (draws, elements), with weights that sum to 1."""
    flat = {v: x.reshape(len(x), -1) for v, x in draws.items()}
    mean = {v: weights @ x for v, x in flat.items()}
    sd = {v: np.sqrt(weights @ np.square(x - mean[v])) for v, x in flat.items()}
    return Moments(mean, sd)


def errors(found: Moments, true: Moments) -> dict[str, float]:
    """Largest error of a mean in true sds, smallest and largest sd / true sd."""
    of_means = [np.abs(found.mean[v] - true.mean[v]) / true.sd[v] for v in true.mean]
    ratios = np.concatenate([found.sd[v] / true.sd[v] for v in true.mean])
    return {
        "error": np.concatenate(of_means).max(),
        "sd low": ratios.min(),
        "sd high": ratios.max(),
    }


def truth(name: str) -> Moments:
    """Mean and sd of a posterior in `POSTERIORS`."""
    if name in posteriordb.WITH_DRAWS:
        return moments(posteriordb.reference_draws(name))
    if name == "a9a":
        stored = np.load(A9A)
        sd = np.sqrt(np.diag(stored["covariance"]))
        mean = stored["mean"]
        return Moments({"w": mean[:-1], "b": mean[-1:]}, {"w": sd[:-1], "b": sd[-1:]})
    mean, sd = {}, {}
    if name == CENTRED:
        name = name.replace("_centered", "_noncentered")
    for line in (RESULTS / f"{name}.txt").read_text().splitlines():
        if row := re.fullmatch(r"(\w+)\[\d+\] +(\S+) +(\S+)", line):
            variable, *numbers = row.groups()
            for column, number in zip((mean, sd), numbers, strict=True):
                column.setdefault(variable, []).append(float(number))
    return Moments(*({v: np.array(x) for v, x in column.items()} for column in (mean, sd)))


def sampled(name: str) -> tuple[Moments, str]:
    """Means and sds by NUTS, and a line about it."""
    with BY_NUTS[name]() as model:
        if name in LOGISTIC:  # their curvature at the mode is known: a metric from the first draw
            mode, covariance = laplace(*LOGISTIC[name]())
            how = {
                "step": pm.NUTS(potential=QuadPotentialFull(covariance)),
                "initvals": {"w": mode[:-1], "b": mode[-1]},
                "tune": 300,
            }
        else:
            how = {"init": "jitter+adapt_full", "target_accept": 0.9, "tune": 1500}
        with threadpool_limits(1):  # waiting threads cost more than the products themselves
            idata = pm.sample(2500, chains=4, cores=1, random_seed=1, progressbar=False, **how)
    posterior = idata.posterior.to_dataset().drop_vars("z", errors="ignore")
    draws = posterior.stack(sample=("chain", "draw"), create_index=False)
    found = moments({v: draws[v].transpose("sample", ...).values for v in posterior.data_vars})
    ess, rhat = az.ess(posterior), az.rhat(posterior)
    return found, (
        f"NUTS, 4 chains x 2500 draws, {posteriordb.n_rows(model)} rows: bulk ESS at least "
        f"{min(float(ess[v].min()) for v in ess):.0f}, R-hat at most "
        f"{max(float(rhat[v].max()) for v in rhat):.4f}, "
        f"{int(idata.sample_stats['diverging'].sum())} divergences"
    )


def integrated(name: str) -> tuple[Moments, str]:
    """Means and sds of what groups share by quadrature, and a line about it."""
    draws, weights, ess = group_posteriors.weighted_draws(name)
    return weighted_moments(draws, weights), (
        f"quadrature with {group_posteriors.NODES} nodes a group, and {len(weights)} weighted "
        f"draws, in effect {ess:.0f}"
    )


def run(name: str) -> None:
    """Find a posterior's means and sds, and write them."""
    began = time.perf_counter()
    found, how = (integrated if name in BY_QUADRATURE else sampled)(name)
    lines = [
        f"python benchmarks/truth.py --only {name}   ({time.strftime('%Y-%m-%d')}, "
        f"pymc {pm.__version__})",
        how,
        f"{'parameter':16}{'mean':>14}{'sd':>14}",
    ]
    for variable, mean in found.mean.items():
        for k, numbers in enumerate(zip(mean, found.sd[variable], strict=True)):
            lines.append(f"{f'{variable}[{k}]':16}" + "".join(f"{x:>14.6g}" for x in numbers))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.txt").write_text("\n".join(lines) + "\n")
    print(lines[0], lines[1], f"{time.perf_counter() - began:.0f} s", sep="\n", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=[*BY_NUTS, *BY_QUADRATURE], help="this posterior")
    args = parser.parse_args()
    for name in [args.only] if args.only else [*BY_NUTS, *BY_QUADRATURE]:
        run(name)


if __name__ == "__main__":
    main()
