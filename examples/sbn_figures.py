"""Figures of several belief networks at once, from what `sbn.py` saved.

    python examples/sbn_figures.py

Convergence (doubly stochastic paper, Figure 3): log likelihood of validation images against seconds
and images seen, all networks of a data set in one picture. Features (Figure 1c-d): those of the
bottom layer under the sparse and a normal prior, and how local they are:

    python examples/sbn.py --data mnist --learning-rate 0.1 --updates 3000
    python examples/sbn.py --data mnist --learning-rate 0.1 --updates 3000 --normal 1
"""

import json

import matplotlib.pyplot as plt
import numpy as np
from belief_networks import load_parameters, one_draw
from common import RESULTS, Report, arguments

SHOWN = 40
"""Features of each network."""


def convergence(runs: dict[str, dict]):
    """One column per data set: against seconds above, against images seen below."""
    data = sorted({name.split()[1] for name in runs})
    fig, axes = plt.subplots(
        2, len(data), figsize=(4.2 * len(data), 8), squeeze=False, constrained_layout=True
    )
    for column, of in zip(axes.T, data, strict=True):
        colors: dict[str, str] = {}
        for name, run in runs.items():
            kind, set_, sizes, latents, *prior = name.split()
            if set_ != of:
                continue
            network = " ".join(["AR " * (kind == "arsbn") + sizes, *prior])
            color = colors.setdefault(network, f"C{len(colors)}")
            style = {"gibbs": ".-", "neural": ".--"}[latents]
            for ax, x in zip(column, ("s", "images seen"), strict=True):
                curve = run["curve"]
                ax.plot(curve[x], curve["log p"], style, color=color, label=f"{network} {latents}")
                ax.set(xlabel=x, xscale="log")
                ax.xaxis.set_minor_formatter("")
                ax.grid(alpha=0.3)
        column[0].set(title=of)
        column[1].legend(fontsize=7)
    axes[0, 0].set_ylabel("mean log p(x | theta), validation")
    axes[1, 0].set_ylabel("mean log p(x | theta), validation")
    return fig


def features(networks: dict[str, np.ndarray]):
    """The largest features of each network, side by side."""
    fig, axes = plt.subplots(1, len(networks), figsize=(5 * len(networks), 4.4), squeeze=False)
    for ax, (name, w) in zip(axes[0], networks.items(), strict=True):
        largest = w[np.argsort(-np.abs(w).sum(axis=1))[:SHOWN]]
        images = (largest / np.abs(largest).max(axis=1, keepdims=True)).reshape(-1, 8, 28, 28)
        images = np.pad(images, [(0, 0), (0, 0), (0, 1), (0, 1)], constant_values=np.nan)
        ax.imshow(images.transpose(0, 2, 1, 3).reshape(-1, 8 * 29), cmap="RdBu", vmin=-1, vmax=1)
        ax.set_title(name, fontsize=10)
        ax.axis("off")
    fig.tight_layout()
    return fig


def effective_pixels(w: np.ndarray) -> float:
    """Median over the largest features: (sum w^2)^2 / sum w^4, n if n pixels have equal weights."""
    largest = w[np.argsort(-np.abs(w).sum(axis=1))[:SHOWN]]
    return float(np.median((largest**2).sum(axis=1) ** 2 / (largest**4).sum(axis=1)))


def main():
    args = arguments(__doc__.splitlines()[0])
    runs = json.loads((RESULTS / "sbn.json").read_text())
    runs = {name: run for name, run in sorted(runs.items()) if "curve" in run}
    report = Report("sbn_curves", args.quick, "sbn_figures")
    rows = [
        [name, f"{run['curve']['s'][-1]:.0f}", f"{run['curve']['log p'][-1]:.1f}"]
        for name, run in runs.items()
    ]
    report.table(["network", "s", "validation (50 images, annealed briefly)"], rows)
    report.save(convergence(runs))
    networks = {
        title: one_draw(load_parameters(path))["w1"]
        for title, name in [
            ("Student's t", "sbn_mnist_200_gibbs"),
            ("normal, sd 1", "sbn_mnist_200_gibbs_normal"),
        ]
        if (path := RESULTS / "sbn" / f"{name}.npz").exists()
    }
    report = Report("sbn_features", args.quick, "sbn_figures")
    report.print(f"MNIST, one layer of 200, Gibbs; of the {SHOWN} largest features:")
    report.table(
        ["prior", "effective pixels, median"],
        [[name, f"{effective_pixels(w):.0f}"] for name, w in networks.items()],
    )
    report.save(features(networks))


if __name__ == "__main__":
    main()
