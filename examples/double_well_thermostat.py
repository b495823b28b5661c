"""Double well: a friction held at three values against the thermostat of SGNHT.

SGNHT paper, figures 1 and 4: U = (x + 4)(x + 1)(x - 1)(x - 3) / 14 + 0.5, gradient noise of
variance 2 B h per update with B = 1, nothing injected (A = 0), h = 0.01, 1e6 updates; xi held at
0.1, 1 and 10, or moved by the thermostat from its start at A = 0. All of these settings are the
paper's; its figures have no numbers.

The noise comes from rows: each update draws one of N rows, with noise of its own. SGHMC with
friction xi has no noise but that of its temperature: variance 2 xi T h with T = B / xi is the
gradient's noise, and nothing is injected.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from common import GREY, E, Report, S, arguments, chain, progress
from double_well import EDGES, kl, potential, true_probabilities

import pymc_sgmcmc as sgm

H, B = 0.01, 1.0
FIXED = (1.0, 10.0, 0.1)
N_ROWS = 100_000
WIDE = np.linspace(-12, 11, 231)
"""Bins of the figure: wide enough for a chain that is too hot."""


def noisy_well(seed: int) -> pm.Model:
    """A batch of one row has the gradient -U'(x) plus N(0, 2 B / h): times h, variance 2 B h."""
    noise = np.sqrt(2 * B / H) * np.random.default_rng(seed).normal(size=N_ROWS)
    with pm.Model(coords={"row": range(N_ROWS)}) as model:
        x = pm.Flat("x", initval=0.0)
        rows = pm.Data("noise", noise - noise.mean(), dims="row")
        pm.Potential("noisy", (rows * x - potential(x)) / N_ROWS, dims="row")
    return model


def exact_well() -> pm.Model:
    """The same without noise."""
    with pm.Model() as model:
        x = pm.Flat("x", initval=0.0)
        pm.Potential("minus_U", -potential(x))
    return model


def main() -> None:
    args = arguments(
        __doc__.splitlines()[0],
        updates=(1_000_000, "updates of each chain"),
        chains=(4, "chains of each setting, one after the other"),
        thin=(25, "record every so many updates"),
    )
    if args.quick:
        args.updates, args.chains = 50_000, 2
    report = Report("double_well_thermostat", args.quick)
    report.print(
        "Double well with a fixed friction or a thermostat (SGNHT paper, figures 1 and 4)\n"
    )
    truth = true_probabilities()
    settings = {}
    exact = exact_well()
    for xi in FIXED:
        settings[f"xi = {xi:g}"] = sgm.SGHMC_E(
            model=exact, step_size=H, friction=xi, temperature=B / xi, thin=args.thin
        )
    settings["thermostat"] = sgm.SGNHT(
        model=noisy_well(args.seed),
        step_size=H,
        diffusion=0.0,
        batch_size=1,
        replacement=True,
        thin=args.thin,
    )
    start = {"x": np.asarray(0.0)}
    x, kinetic, xi = {}, {}, {}
    for name, seed in progress([(n, s) for n in settings for s in range(args.chains)]):
        draws, stats = chain(settings[name], args.seed + seed, args.updates // args.thin, start)
        x[name, seed] = draws["x"]
        kinetic[name, seed] = stats["kinetic_temperature"] / 2
        if "thermostat" in stats:
            xi[seed] = stats["thermostat"]
    rows = []
    for name in settings:
        own = [x[name, s] for s in range(args.chains)]
        distance = [kl(one, truth) for one in own]
        energy = [kinetic[name, s].mean() for s in range(args.chains)]
        crossings = np.mean([np.sum(np.diff(one > 0)) for one in own])
        outside = np.mean([np.mean((one < EDGES[0]) | (one > EDGES[-1])) for one in own])
        values = [xi[s][len(xi[s]) // 10 :].mean() for s in xi] if name == "thermostat" else []
        rows.append([
            name,
            f"{np.mean(energy):.3f} +- {np.ptp(energy) / 2:.3f}",
            f"{np.mean(distance):.4f} +- {np.ptp(distance) / 2:.4f}",
            f"{np.mean([one.std() for one in own]):.2f}",
            f"{crossings:.0f}",
            f"{100 * outside:.2g}%",
            f"{np.mean(values):.3f} +- {np.ptp(values) / 2:.3f}" if values else "",
        ])  # fmt: skip
    report.print(
        f"{args.chains} chains of {args.updates} updates, every {args.thin}th recorded; means\n"
        "over chains +- half their range. Kinetic energy: 0.5 is right. KL: of the truth from the\n"
        f"histogram of one chain. sd: the truth's is {true_sd(truth):.2f}. Crossings of 0 per\n"
        "chain, as recorded. Outside: of the bins, which hold all of the truth. xi: after a tenth\n"
        "of the run.\n"
    )
    report.table(["friction", "kinetic energy", "KL", "sd", "crossings", "outside", "xi"], rows)
    report.save(figure(x, kinetic, xi, settings, truth, args.thin))


def true_sd(truth: np.ndarray) -> float:
    """Standard deviation of the target."""
    centre = 0.5 * (EDGES[1:] + EDGES[:-1])
    mean = truth @ centre
    return float(np.sqrt(truth @ (centre - mean) ** 2))


def figure(x, kinetic, xi, settings, truth, thin):
    """Densities, mean kinetic energies so far, and xi, of the first chains."""
    drawn, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    colours = dict(zip(settings, (GREY, "tab:green", E, S), strict=True))
    centre = 0.5 * (WIDE[1:] + WIDE[:-1])
    for name, colour in colours.items():
        density = np.histogram(x[name, 0], WIDE)[0] / len(x[name, 0]) / (WIDE[1] - WIDE[0])
        axes[0].plot(centre, density, c=colour, label=name)
        count = np.arange(1, 1 + len(kinetic[name, 0]))
        axes[1].plot(count * thin, np.cumsum(kinetic[name, 0]) / count, c=colour, label=name)
    axes[0].plot(
        0.5 * (EDGES[1:] + EDGES[:-1]), truth / (EDGES[1] - EDGES[0]), "k--", lw=1, label="truth"
    )
    axes[0].set(xlabel="x", ylabel="density", title="Samples of one chain")
    axes[1].axhline(0.5, c="k", ls="--", lw=1)
    axes[1].set(xscale="log", yscale="log", xlabel="updates", title="Mean kinetic energy so far")
    for seed, values in xi.items():
        count = np.arange(1, 1 + len(values))
        axes[2].plot(count * thin, values, c=S, lw=0.3, alpha=0.3 if seed else 0.6)
        label = None if seed else "mean so far"
        axes[2].plot(count * thin, np.cumsum(values) / count, c=E, label=label)
    axes[2].axhline(B, c="k", ls="--", lw=1, label="B = 1")
    axes[2].set(xscale="log", xlabel="updates", title="xi of the thermostat")
    for axis in axes:
        axis.legend(frameon=False)
    return drawn


if __name__ == "__main__":
    main()
