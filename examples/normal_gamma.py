"""Mean and precision of a normal: SGNHT and SGHMC, accuracy against autocorrelation time.

SGNHT paper, section 5.1, figure 6 and table 1: N = 100, batches of 10 drawn independently, the
Normal-Gamma prior mu | gamma ~ N(0, 1 / gamma), gamma ~ Gamma(1, 1), 1e6 updates. gamma is sampled
as it is, not as its logarithm, as in the paper.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from common import E, Report, S, arguments, chain, progress, updates_autocorrelation, with_step_size
from scipy.stats import gamma as gamma_distribution
from scipy.stats import t as student

import pymc_sgmcmc as sgm

SETTINGS = [(h, A) for h in (0.01, 0.001) for A in (1.0, 10.0)]
PAPER = {  # table 1: RMSE of the density, autocorrelation time
    ("SGHMC", 0.01, 1.0): (0.629, 7.19),
    ("SGHMC", 0.01, 10.0): (0.286, 37.68),
    ("SGHMC", 0.001, 1.0): (0.292, 67.83),
    ("SGHMC", 0.001, 10.0): (0.136, 357.14),
    ("SGNHT", 0.01, 1.0): (0.175, 14.35),
    ("SGNHT", 0.01, 10.0): (0.026, 55.65),
    ("SGNHT", 0.001, 1.0): (0.091, 22.97),
    ("SGNHT", 0.001, 10.0): (0.053, 424.81),
}


def posterior(x: np.ndarray):
    """Exact marginals of mu (Student t) and gamma."""
    n, mean = len(x), x.mean()
    shape = 1 + n / 2
    rate = 1 + 0.5 * ((x - mean) ** 2).sum() + 0.5 * n / (1 + n) * mean**2
    scale = np.sqrt(rate / (shape * (n + 1)))
    return student(2 * shape, n / (n + 1) * mean, scale), gamma_distribution(shape, scale=1 / rate)


def grids(marginals) -> list[np.ndarray]:
    """Bin edges over the bulk of each marginal."""
    return [np.linspace(m.mean() - 5 * m.std(), m.mean() + 5 * m.std(), 61) for m in marginals]


def rmse(samples: list[np.ndarray], marginals) -> float:
    """Root mean square error of the two histograms' densities, over all bins."""
    errors = []
    for x, marginal, edges in zip(samples, marginals, grids(marginals), strict=True):
        width = edges[1] - edges[0]
        estimate = np.histogram(x, edges)[0] / (len(x) * width)
        errors.append(estimate - np.diff(marginal.cdf(edges)) / width)
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


def main() -> None:
    args = arguments(
        __doc__.splitlines()[0],
        updates=(1_000_000, "updates of each chain"),
        thin=(20, "record every so many updates"),
    )
    if args.quick:
        args.updates = 20_000
    report = Report("normal_gamma", args.quick)
    report.print("Normal mean and precision (SGNHT paper, section 5.1, table 1)\n")
    data = np.random.default_rng(args.seed).normal(size=100)
    marginals = posterior(data)
    start = {"mu": np.asarray(data.mean()), "gamma": np.asarray(1 / data.var())}
    options = {"step_size": 0.001, "batch_size": 10, "replacement": True, "thin": args.thin}
    samplers = {}
    with pm.Model():
        gamma = pm.Gamma("gamma", 1, 1, initval=start["gamma"], default_transform=None)
        mu = pm.Normal("mu", 0, 1 / pm.math.sqrt(gamma), initval=start["mu"])
        pm.Normal("x", mu, 1 / pm.math.sqrt(gamma), observed=data)
        for A in (1.0, 10.0):
            samplers["SGNHT", A] = sgm.SGNHT(diffusion=A, **options)
            samplers["SGHMC", A] = sgm.SGHMC_E(friction=A, **options)
    results, scores = {}, {}
    for name, h, A in progress([(n, h, A) for n in ("SGHMC", "SGNHT") for h, A in SETTINGS]):
        step = samplers[name, A]
        with_step_size(step, h)
        n_draws = args.updates // args.thin
        draws, stats = chain(step, args.seed, n_draws, start, burn_in=n_draws // 20)
        time = updates_autocorrelation(
            step,
            args.seed,
            draws["mu"] + draws["gamma"],
            lambda other: other["mu"] + other["gamma"],
            start,
        )
        results[name, h, A] = draws, stats
        scores[name, h, A] = rmse([draws["mu"], draws["gamma"]], marginals), time
    report.print(
        "RMSE: of the histogram densities of mu and gamma over 60 bins each, within five sds (the\n"
        "paper does not give its bins). Time: autocorrelation time of mu + gamma, in updates.\n"
    )
    rows = []
    for key, (error, time) in scores.items():
        draws, stats = results[key]
        name, h, A = key
        ratios = [draws[v].std() / m.std() for v, m in zip(("mu", "gamma"), marginals, strict=True)]
        rows.append(
            [
                f"{name} h={h} A={A:g}",
                "{:.3f}, {:.1f}".format(*PAPER[key]),
                f"{error:.3f}, {time:.1f}",
                "{:.2f}, {:.2f}".format(*ratios),
                f"{stats['kinetic_temperature'].mean() / 2:.2f}",
                f"{100 * stats['nonfinite'].mean():.2g}%",
            ]
        )
    columns = ["paper RMSE, time", "here RMSE, time", "sd / true: mu, gamma", "kinetic energy"]
    report.table(["setting", *columns, "failed"], rows)
    n = len(SETTINGS)
    here = sum(scores["SGNHT", h, A][0] < scores["SGHMC", h, A][0] for h, A in SETTINGS)
    report.print()
    report.table(
        ["claim", "paper", "here"], [["RMSE of SGNHT below SGHMC's", f"4 of {n}", f"{here} of {n}"]]
    )
    report.print(
        "\nSGNHT reaches SGHMC's accuracy with a shorter autocorrelation time, as the paper\n"
        "says. Its one thermostat cannot fit noise that varies with mu and gamma and differs\n"
        "between them: at h = 0.01 mu comes out too wide and gamma too narrow. The numbers need\n"
        "not agree closely: the data and the bins differ, and the gradient that the paper prints\n"
        "for gamma lacks a factor 1/2 before the sum of squares."
    )
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    edges = grids(marginals)
    for axis, k, variable in ((axes[0], 0, "mu"), (axes[1], 1, "gamma")):
        centre = 0.5 * (edges[k][1:] + edges[k][:-1])
        for name, colour in (("SGHMC", E), ("SGNHT", S)):
            for (h, A), line in zip(SETTINGS, ("-", "--", "-.", ":"), strict=True):
                x = results[name, h, A][0][variable]
                density = np.histogram(x, edges[k])[0] / len(x) / (edges[k][1] - edges[k][0])
                label = f"{name} h={h} A={A:g}"
                axis.plot(centre, density, c=colour, ls=line, lw=1.2, label=label)
        axis.plot(centre, marginals[k].pdf(centre), "k", lw=1.5, label="truth")
        axis.set(xlabel=variable, title=f"Marginal density of {variable}")
    axes[0].legend(frameon=False, fontsize=6.5)
    for name, colour in (("SGHMC", E), ("SGNHT", S)):
        for source, marker in ((scores, "o"), (PAPER, "x")):
            points = np.array([source[name, h, A] for h, A in SETTINGS])
            where = "here" if source is scores else "paper"
            axes[2].plot(
                points[:, 1], points[:, 0], marker, c=colour, label=f"{name}, {where}", ms=7
            )
    for (_, h, A), (error, time) in scores.items():
        place = {"fontsize": 7, "xytext": (-14, 8), "textcoords": "offset points"}
        axes[2].annotate(f"{h:g}, {A:g}", (time, error), **place)
    axes[2].set(xscale="log", yscale="log", xlabel="autocorrelation time (updates)")
    axes[2].set(ylabel="RMSE of the density", title="Accuracy against speed (labels: h, A)")
    axes[2].legend(frameon=False, fontsize=8)
    report.save(figure)


if __name__ == "__main__":
    main()
