"""Mean of a normal with known variance: SGNHT and SGHMC under minibatch noise.

SGNHT paper, section 5.1 and figures 2 and 5: N = 100, batches of 10 drawn independently, flat
prior, 1e6 updates. SGHMC takes no account of the batch's noise; SGNHT's thermostat absorbs it.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from common import E, Report, S, arguments, chain, progress, with_step_size
from scipy.stats import norm

import pymc_sgmcmc as sgm

SETTINGS = [(h, A) for h in (0.01, 0.001) for A in (1.0, 10.0)]


def main() -> None:
    args = arguments(
        __doc__.splitlines()[0],
        updates=(1_000_000, "updates of each chain"),
        thin=(20, "record every so many updates"),
    )
    if args.quick:
        args.updates = 20_000
    report = Report("normal_mean", args.quick)
    report.print("Normal mean, known variance (SGNHT paper, section 5.1, figures 2 and 5)\n")
    data = np.random.default_rng(args.seed).normal(size=100)
    mean, sd = data.mean(), 1 / np.sqrt(len(data))
    options = {"step_size": 0.01, "batch_size": 10, "replacement": True, "thin": args.thin}
    samplers = {}
    with pm.Model():
        mu = pm.Flat("mu", initval=mean)
        pm.Normal("x", mu, 1, observed=data)
        for A in (1.0, 10.0):
            samplers["SGNHT", A] = sgm.SGNHT(diffusion=A, **options)
            samplers["SGHMC", A] = sgm.SGHMC_E(friction=A, **options)
    results = {}
    for name, h, A in progress([(n, h, A) for n in ("SGNHT", "SGHMC") for h, A in SETTINGS]):
        with_step_size(samplers[name, A], h)
        draws, stats = chain(
            samplers[name, A],
            args.seed,
            args.updates // args.thin,
            {"mu": np.asarray(mean)},
            burn_in=args.updates // args.thin // 20,
        )
        results[name, h, A] = draws["mu"], stats
    # N^2 / n times the variance of the data, with replacement: the gradient's variance
    noise = len(data) ** 2 / 10 * data.var()
    report.print(
        f"The gradient's noise adds B = h V / 2 to A, with V = {noise:.0f} here: a thermostat\n"
        "should settle at A + B.\n"
    )
    rows = []
    for (name, h, A), (draws, stats) in results.items():
        xi = stats["thermostat"].mean() if name == "SGNHT" else A
        rows.append(
            [
                f"{name} h={h} A={A:g}",
                f"{draws.std() / sd:.3f}",
                f"{(draws.mean() - mean) / sd:+.3f}",
                f"{stats['kinetic_temperature'].mean() / 2:.3f}",
                f"{xi:.2f}",
                f"{A + h * noise / 2:.2f}",
            ]
        )
    header = ["setting", "sd / true", "mean error / sd", "kinetic energy", "xi", "A + B"]
    report.table(header, rows)

    def worst(name):
        ratios = {key: d.std() / sd for key, (d, _) in results.items() if key[0] == name}
        return max(ratios.values(), key=lambda r: abs(np.log(r)))

    best = results["SGHMC", 0.001, 10.0][0].std() / sd
    xi = {h: results["SGNHT", h, 1.0][1]["thermostat"].mean() for h in (0.01, 0.001)}
    report.print()
    report.table(
        ["claim", "paper", "here"],
        [
            ["SGNHT right at all h, A: worst sd / true", "accurate", f"{worst('SGNHT'):.2f}"],
            ["SGHMC: worst sd / true", "too wide", f"{worst('SGHMC'):.2f}"],
            ["SGHMC at h = 0.001, A = 10: sd / true", "accurate", f"{best:.2f}"],
            ["xi at h = 0.01, A = 1", "much larger than A", f"{xi[0.01]:.2f}"],
            ["xi at h = 0.001, A = 1", "close to A", f"{xi[0.001]:.2f}"],
        ],
    )
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.6), layout="constrained")
    grid = np.linspace(mean - 6 * sd, mean + 6 * sd, 121)
    looks = dict(zip(SETTINGS, [(S, "-"), (S, "--"), (E, "-"), (E, "--")], strict=True))
    for axis, name in zip(axes, ("SGNHT", "SGHMC"), strict=False):
        for (h, A), (colour, line) in looks.items():
            density = np.histogram(results[name, h, A][0], grid, density=True)[0]
            centre = 0.5 * (grid[1:] + grid[:-1])
            axis.plot(centre, density, c=colour, ls=line, lw=1.3, label=f"h={h}, A={A:g}")
        axis.plot(grid, norm.pdf(grid, mean, sd), "k:", lw=2, label="truth")
        axis.set(xlabel="mu", title=f"Density, {name}", ylim=(0, 4.6))
    axes[0].set_ylabel("density")
    for (h, A), (colour, line) in looks.items():
        xi = results["SGNHT", h, A][1]["thermostat"]
        count = np.arange(1, len(xi) + 1)
        axes[2].plot(count * args.thin, np.cumsum(xi) / count, c=colour, ls=line)
        for name, width in (("SGNHT", 2.2), ("SGHMC", 1)):
            kinetic = results[name, h, A][1]["kinetic_temperature"] / 2
            axes[3].plot(count * args.thin, np.cumsum(kinetic) / count, c=colour, ls=line, lw=width)
    late = (args.updates / 1000, args.updates)
    axes[2].set(xlabel="updates", title="Mean of xi so far, SGNHT", xscale="log", xlim=late)
    axes[3].axhline(0.5, c="k", ls=":", lw=2)
    axes[3].set(xlabel="updates", xscale="log", xlim=late, ylim=(0.3, 3), yscale="log")
    axes[3].set_title("Kinetic energy\n(thick SGNHT, thin SGHMC)")
    axes[3].set_yticks([0.3, 0.5, 1, 2, 3], ["0.3", "0.5", "1", "2", "3"])
    axes[3].minorticks_off()
    axes[0].legend(frameon=False, fontsize=8)
    report.save(figure)


if __name__ == "__main__":
    main()
