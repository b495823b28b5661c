"""Mean and precision of a normal: the autocorrelation time at h = 0.001 and A = 1, taken apart.

SGNHT paper, table 1, gives mu + gamma an autocorrelation time of 22.97 updates for SGNHT, but 67.83
for SGHMC and 424.81 for SGNHT at A = 10. With so little friction mu and gamma oscillate, and so
do their autocorrelations: an estimate depends on the lag at which its sum ends. And the time is
proportional to the posterior's variance, so it depends on the data.

Here the sum ends at several lags, for the data of `normal_gamma.py` and for the same data scaled to
mean 0 and variance 1, and is set against the time of the linearised dynamics,

    (A + B) / h times the mean of the two variances, weighted by themselves

with B = 0 for SGHMC and the mean of h V / 2 over mu and gamma for SGNHT, V the variance of the
minibatch gradient.
"""

import numpy as np
import pymc as pm
from common import Report, arguments, autocorrelation_time, autocovariance, chain, progress
from normal_gamma import PAPER, posterior

import pymc_sgmcmc as sgm

H, A, BATCH = 0.001, 1.0, 10
WINDOWS = (500, 2_000, 10_000)
"""Last lags, in updates; the autocorrelation decays by a factor e in about 2 / (A h) = 2000."""


def data_sets(seed: int) -> dict[str, np.ndarray]:
    """Those of `normal_gamma.py`, as they are and scaled."""
    x = np.random.default_rng(seed).normal(size=100)
    return {"as drawn": x, "scaled": (x - x.mean()) / x.std()}


def samplers(x: np.ndarray, thin: int) -> tuple[dict, dict]:
    """Steps, and a start."""
    start = {"mu": np.asarray(x.mean()), "gamma": np.asarray(1 / x.var())}
    options = {"step_size": H, "batch_size": BATCH, "replacement": True, "thin": thin}
    with pm.Model():
        gamma = pm.Gamma("gamma", 1, 1, initval=start["gamma"], default_transform=None)
        mu = pm.Normal("mu", 0, 1 / pm.math.sqrt(gamma), initval=start["mu"])
        pm.Normal("x", mu, 1 / pm.math.sqrt(gamma), observed=x)
        steps = {
            "SGHMC": sgm.SGHMC_E(friction=A, **options),
            "SGNHT": sgm.SGNHT(diffusion=A, **options),
        }
    return steps, start


def linear_time(name: str, x: np.ndarray) -> float:
    """Autocorrelation time of the linearised dynamics, in updates."""
    mu, gamma = posterior(x)
    variances = np.array([mu.var(), gamma.var()])
    per_datum = [gamma.mean() * (x - mu.mean()), (x - mu.mean()) ** 2 / 2]
    noise = H / 2 * len(x) ** 2 / BATCH * np.var(per_datum, axis=1).mean()
    friction = A + (noise if name == "SGNHT" else 0)
    return friction * (variances**2).sum() / variances.sum() / H


def windowed_time(x: np.ndarray, thin: int, window: int) -> float:
    """Autocorrelation time in updates, of a sum up to a lag, by the trapezium rule."""
    covariance = autocovariance(x)
    return thin * (0.5 + np.sum(covariance[1 : 1 + window // thin]) / covariance[0])


def until_negative(x: np.ndarray, thin: int) -> float:
    """Autocorrelation time of a sum up to the first negative term, in updates."""
    covariance = autocovariance(x)
    end = np.flatnonzero(covariance < 0)[0]
    return thin * (0.5 + np.sum(covariance[1:end]) / covariance[0])


def main() -> None:
    args = arguments(
        __doc__.splitlines()[0],
        updates=(1_000_000, "updates of each chain"),
        chains=(3, "chains of each setting, one after the other"),
        thin=(50, "record every so many updates"),
    )
    if args.quick:
        args.updates, args.chains = 50_000, 2
    report = Report("normal_gamma_time", args.quick)
    report.print(
        f"Autocorrelation time of mu + gamma at h = {H}, A = {A:g} (SGNHT paper, table 1)\n"
    )
    rows = []
    for kind, x in data_sets(args.seed).items():
        steps, start = samplers(x, args.thin)
        for name in progress(list(steps)):
            found = []
            for k in range(args.chains):
                draws, _ = chain(
                    steps[name], args.seed + k, args.updates // args.thin, start, burn_in=1000
                )
                series = draws["mu"] + draws["gamma"]
                found.append(
                    [windowed_time(series, args.thin, w) for w in WINDOWS]
                    + [until_negative(series, args.thin)]
                    + [args.thin * autocorrelation_time(series)]
                )
            mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(args.chains)
            rows.append(
                [f"{name}, {kind}", f"{PAPER[name, H, A][1]:.1f}", f"{linear_time(name, x):.1f}"]
                + [f"{m:.1f} +- {e:.1f}" for m, e in zip(mean, error, strict=True)]
            )
    report.print(
        f"{args.chains} chains of {args.updates} updates, every {args.thin}th recorded: mean +-\n"
        "standard error, in updates. Only a sum up to a lag at which the autocorrelation has\n"
        "decayed is an estimate of the time; the others show what ends of the sum do.\n"
    )
    ends = [f"up to {w}" for w in WINDOWS]
    header = ["sampler, data", "paper", "linear", *ends, "up to < 0", "Sokal's window"]
    report.table(header, rows)
    report.save()


if __name__ == "__main__":
    main()
