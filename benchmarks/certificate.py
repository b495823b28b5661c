"""What the certificate says of faulty draws, and whether `sample(exact=True)` repairs them.

    python benchmarks/certificate.py             # ten minutes of CPU time
    python benchmarks/certificate.py --runs 5 --only "logistic, step x3"   # replaces this row

Writes benchmarks/results/certificate.txt, a row for each case. The posteriors, whose means and
standard deviations are known, and the faults are those of verdicts.py; in "integrated" cases they
are those of what 2000 groups share, whose effects are integrated out. Each case has one step, from
which each seed samples twice: without and with `exact=True`, which begins at the same draws.
"""

import argparse
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from verdicts import (
    Case,
    Posterior,
    Shared,
    integrated,
    linear,
    logistic,
    noise_ignored,
    right,
    sampled,
    unvisited_mode,
    wrong_anchor_gradient,
)

import pymc_sgmcmc as sgm
from pymc_sgmcmc.diagnosis.verdict import judge, rows

RESULTS = Path(__file__).parent / "results" / "certificate.txt"
OF_MOMENTS = ("certified_mean", "certified_sd")
OWN = ("k_hat", *(name + end for name in OF_MOMENTS for end in ("", "_error", "_degrees")))
"""Measurements of the verdict that the certificate has made."""
LAYOUT = (
    "{:<39}{:>4}{:>8}{:>12}{:>7}{:>6}{:>7}{:>6}{:>6}{:>7}{:>6}{:>6}{:>7}{:>6}{:>6}{:>8}{:>7}{:>7}"
)
GROUPS = LAYOUT.format(
    "", "", "failed:", "", "k-hat", "", "mean:", "", "", "sd:", "", "", "exact:", *[""] * 5
)
TITLES = (
    *("case", "runs", "verdict", "certificate", "median", "< .7"),
    *("off", "told", "left", "off", "told", "left"),
    *("ok", "mean", "sd", "rms", "z", "z sd"),
)
NOTES = """\
failed: runs in which the verdict without the certificate says "failed", and in which the
certificate does. k-hat: median, and the number of runs in which it is below .7. Of means, in
standard deviations of the posterior, and of sds, relative to the right ones, medians over runs.
off: largest error of the draws. told: the error of the same element by the certificate. left:
largest error of the certificate's corrected values. exact: runs whose exact draws have the verdict
"ok"; mean, sd: their largest errors, medians over runs; rms: root mean square of all runs' errors
of means in Monte Carlo standard errors, by the means of the 32 short chains, and z, z sd: the
largest of these and of those of variances. Of 30 runs with right draws rms is 1.05 +- 0.05, and
chance gives a z beyond 4.1 to one row in twenty; variances are skewed, and exceed it more often.
Cases of a posterior have the same seeds, so that their exact draws are much alike."""


def mode_never_visited() -> tuple[Posterior, Callable[..., xr.DataTree]]:
    """The warm-up finds one of the two modes of verdicts.py."""
    posterior, _ = unvisited_mode()
    with posterior.model:
        step = sgm.MSGNHT_S(rng=1)
    return posterior, lambda seed, **more: sampled(step, seed, **more)


def integrated_groups(factor: float = 1.0, wrong_anchor: bool = False) -> Case:
    """A logistic regression with intercepts of groups, and the moments in the posterior's order."""

    def case():
        shared, run = integrated("groups-intercepts", factor, wrong_anchor)()
        assert isinstance(shared, Shared)
        names = names_of(shared.model)
        mean, sd = (np.concatenate([of[n] for n in names]) for of in (shared.mean, shared.sd))
        return Posterior(shared.model, mean, np.diag(sd**2)), run

    return case


def names_of(model: pm.Model) -> list[str]:
    """The variables whose moments are known, in the order of the posterior's parameters."""
    return [rv.name for rv in model.free_RVs]


FAULTS: dict[str, Callable[[Callable[[], Posterior]], Case]] = {
    "right": right,
    "step x3": lambda make: right(make, 3),
    "wrong gradient at the anchor": wrong_anchor_gradient,
    "friction held, noise ignored": noise_ignored,
}
CASES: dict[str, Case] = {
    f"{make.__name__}, {fault}": case(make)
    for make in (linear, logistic)
    for fault, case in FAULTS.items()
} | {
    "integrated, right": integrated_groups(),
    "integrated, step x3": integrated_groups(3),
    "integrated, wrong anchor gradient": integrated_groups(wrong_anchor=True),
    "a mode never visited": mode_never_visited,
}


class Seen(NamedTuple):
    """What is said of the draws of a run."""

    verdict: bool
    """Whether it is "failed" without the certificate."""
    certificate: bool
    """Whether the certificate fails."""
    k_hat: float
    mean: list[float]
    """Of means: off, told, left."""
    sd: list[float]
    """Of standard deviations, the same."""


def seen(idata: xr.DataTree, posterior: Posterior) -> Seen:
    """Compare the verdict and the certificate with the truth."""
    measured = idata["diagnosis"].to_dataset()
    own = rows(measured[list(OWN)])
    table = sgm.certificate(idata)
    return Seen(
        judge(measured.drop_vars(OWN))[0] == "failed",
        any(row.passed == "no" for row in own),
        table.attrs["k_hat"],
        *errors(table, posterior),
    )


def errors(table: pd.DataFrame, posterior: Posterior) -> tuple[list[float], list[float]]:
    """Errors of means and of standard deviations: off, told and left."""
    sd = np.sqrt(np.diag(posterior.covariance))
    off = ((table["mean"] - posterior.mean) / sd).to_numpy()
    k = np.abs(off).argmax()
    left = np.abs((table["corrected_mean"] - posterior.mean) / sd).max()
    of_means = [abs(off[k]), table["bias"].iloc[k] * np.sign(off[k]), left]
    off = (table["sd"] / sd).to_numpy()
    k = np.abs(np.log(off)).argmax()
    left = (table["corrected_sd"] / sd).to_numpy()
    told = table["sd"] / table["corrected_sd"]
    return of_means, [off[k], told.iloc[k], left[np.abs(np.log(left)).argmax()]]


class Repaired(NamedTuple):
    """Exact draws of a run against the truth."""

    ok: bool
    mean: float
    """Largest error of a mean, in standard deviations."""
    sd: float
    """The standard deviation that is off most, relative to the right one."""
    z: np.ndarray
    """Errors of means in Monte Carlo standard errors, by parameter."""
    z_of_variances: np.ndarray


def repaired(idata: xr.DataTree, posterior: Posterior) -> Repaired:
    """Compare exact draws with the truth; short chains are independent."""
    verdict = idata["diagnosis"].attrs["verdict"]
    sd = np.sqrt(np.diag(posterior.covariance))
    draws = idata["posterior"]
    flat = [
        draws[name].values.reshape(draws["draw"].size * 4, -1) for name in names_of(posterior.model)
    ]
    away = (np.concatenate(flat, axis=1) - posterior.mean) / sd
    short_chains = idata["sample_stats"]["short_chain"].values.max() + 1
    of_chains = away.reshape(short_chains, -1, away.shape[1])
    ratios = away.std(axis=0)
    return Repaired(
        verdict == "ok",
        np.abs(away.mean(axis=0)).max(),
        ratios[np.abs(np.log(ratios)).argmax()],
        standard_errors(of_chains.mean(axis=1)),
        standard_errors(np.square(of_chains).mean(axis=1) - 1),
    )


def standard_errors(of_chains: np.ndarray) -> np.ndarray:
    """Means over independent chains in their standard errors, by column."""
    return of_chains.mean(axis=0) / (of_chains.std(axis=0, ddof=1) / np.sqrt(len(of_chains)))


def row_of(name: str, runs: int) -> str:
    """A row of the table."""
    posterior, run = CASES[name]()
    before, after = [], []
    for seed in range(1, runs + 1):
        before.append(seen(run(seed), posterior))
        after.append(repaired(run(seed, exact=True), posterior))
    k_hats = np.array([one.k_hat for one in before])
    mean, sd = (np.median([getattr(one, of) for one in before], axis=0) for of in ("mean", "sd"))
    z = np.array([one.z for one in after])
    z_of_variances = np.array([one.z_of_variances for one in after])
    cells = [name, runs, sum(one.verdict for one in before), sum(one.certificate for one in before)]
    cells += [f"{np.median(k_hats):.2f}", (k_hats < 0.7).sum()]
    cells += [f"{number:.2f}" for number in (*mean, *sd)]
    cells += [sum(one.ok for one in after)]
    cells += [f"{np.median([getattr(one, of) for one in after]):.2f}" for of in ("mean", "sd")]
    cells += [f"{np.sqrt(np.square(z).mean()):.2f}"]
    cells += [f"{np.abs(each).max():.1f}" for each in (z, z_of_variances)]
    return LAYOUT.format(*map(str, cells))


def write(known: dict[str, str], out: Path) -> None:
    """The table, from rows by case."""
    head = f"python benchmarks/certificate.py   ({time.strftime('%Y-%m-%d')})"
    lines = [head, NOTES, "", GROUPS.rstrip(), LAYOUT.format(*TITLES)]
    lines += [known[case] for case in CASES if case in known]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--only", nargs="+", choices=list(CASES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    logging.getLogger("pymc").setLevel("ERROR")
    known = {}
    if args.out.exists():
        known = {line[:39].strip(): line for line in args.out.read_text("utf-8").splitlines()}
    for name in args.only or CASES:
        known[name] = row_of(name, args.runs)
        print(known[name], flush=True)
        write(known, args.out)


if __name__ == "__main__":
    main()
