"""What averages over a network's posterior are worth: temperature, prior, SGD, a deep ensemble.

784-100-10 ReLU, N(0, s^2) weights and biases, on 10,000 images of MNIST, tested on 10,000 others.
`sgm.sample()` chooses all settings: 4 chains from 4 starts, 100 draws each, a pass over the data
apart. The posterior at the temperature T, posterior^(1 / T), is that of a model with the prior's sd
s T^(1/2) and the log likelihood divided by T: so written, the default call samples it.

SGD is SGLD at T = 1e-12 from random starts, its step halved after each fifth of the run: one
network with as many passes in all as the run at T = 1, s = 1 had, and a deep ensemble of four, each
with a quarter of them.

    virial    mean over draws of -sum theta d log p / d theta, per element of a layer. Integration
              by parts gives 1 for draws of p, whatever p is: a layer far from it has not reached
              its stationary distribution
    draws, chains   disagree: share of pairs of draws (of averages of chains) that predict
              different classes; 0 were one network, repeated
    error of the confidences   expected calibration error, 15 bins

    python examples/mnist_posterior.py     # ten minutes
"""

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor
from common import E, Report, S, arguments
from datasets import load_mnist
from networks import JAX, fully_connected, random_start, relu

import pymc_sgmcmc as sgm

LAYERS = ("W1", "b1", "W2", "b2")
CASES = {
    "T = 1, s = 1": (1.0, 1.0),
    "T = 0.1, s = 1": (0.1, 1.0),
    "T = 0.01, s = 1": (0.01, 1.0),
    "T = 1, s = 0.3": (1.0, 0.3),
    "T = 1, s = 0.1": (1.0, 0.1),
}
"""Temperature and prior standard deviation."""
COLOURS = dict(zip(CASES, (S, "tab:cyan", "tab:purple", "tab:green", "tab:olive"), strict=True))
SGD_RATE = 0.5
"""On the mean gradient, as in the pSGLD paper's table; here it multiplies half the sum."""
SGD, ENSEMBLE = "SGD", "ensemble of 4, SGD"
COLOURS |= {SGD: E, ENSEMBLE: "tab:red"}


def network(X, y, temperature: float, prior_sd: float) -> pm.Model:
    """Whose posterior is that of the network to the power of 1 / temperature."""
    with pm.Model() as model:
        x = pm.Data("X", X, dims=("image", "pixel"))
        digit = pm.Data("digit", y, dims="image")
        sizes = [X.shape[1], 100, 10]
        logits = fully_connected(x, sizes, relu, prior_sd * temperature**0.5)
        likelihood = pm.Categorical.dist(logit_p=logits)
        pm.Categorical("y", logit_p=logits, observed=digit, dims="image")
        if temperature != 1:
            more = 1 / temperature - 1
            pm.Potential("tempered", more * pm.logp(likelihood, digit), dims="image")
    return model


def virial(model, posterior) -> dict[str, float]:
    """Per element of each layer, over every fifth draw."""
    gradient = model.compile_fn(model.dlogp(), mode="JAX")
    names = [v.name for v in model.value_vars]
    draws = az.extract(posterior.isel(draw=slice(None, None, 5)), combined=True)
    sums = np.zeros(len(names))
    for k in range(draws.sizes["sample"]):
        point = {n: draws[n].isel(sample=k).values for n in names}
        flat, at = np.asarray(gradient(point)), 0
        for j, n in enumerate(names):
            part = flat[at : at + point[n].size]
            sums[j] -= part @ np.ravel(point[n]) / point[n].size
            at += point[n].size
    return dict(zip(names, sums / draws.sizes["sample"], strict=True))


def sampled(digits, X, y, n_draws: int, seed: int, temperature: float, prior_sd: float) -> dict:
    """Averages of the adapted run, its virials and some of its weights."""
    model = network(X, y, temperature, prior_sd)
    with model:
        test = sgm.Predictions("y", data={"X": digits.X_test}, labels=digits.y_test)
        tree = sgm.sample(
            n_draws, chains=4, predictions=test, random_seed=seed, progressbar=False,
            compute_convergence_checks=False, compile_kwargs=JAX,
        )  # fmt: skip
    posterior = tree.posterior.to_dataset()
    return {
        "averages": tree.test_predictions,
        "passes": float(tree.posterior.attrs["data_passes"]),
        "virial": virial(model, posterior),
        "weights": {n: posterior[n].values[:, -1].ravel() for n in ("W1", "W2")},
    }


def descended(digits, X, y, n_networks: int, passes: float, seed: int) -> dict:
    """The same of networks at the end of stochastic gradient descent, ``passes`` in all."""
    model = network(X, y, 1.0, 1.0)
    thin, n = len(X) // 128, int(passes / n_networks)
    rate = 2 * SGD_RATE / len(X)

    def halved(k):
        return rate * 0.5 ** ((5 * k) // (n * thin))

    with model:
        step = sgm.SGLD(
            step_size=halved, batch_size=128, thin=thin, temperature=1e-12, compile_kwargs=JAX
        )
        test = sgm.Predictions("y", data={"X": digits.X_test}, labels=digits.y_test)
        tree = sgm.sample(
            1, tune=n - 1, chains=n_networks, step=step, predictions=test, random_seed=seed,
            initvals=[random_start(model, seed + k) for k in range(n_networks)],
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    posterior = tree.posterior.to_dataset()
    return {
        "averages": tree.test_predictions,
        "passes": float(n * n_networks),
        "virial": {},
        "weights": {n: posterior[n].values[:, -1].ravel() for n in ("W1", "W2")},
    }


def row(name: str, result: dict) -> list[str]:
    """A line of the table."""
    a = result["averages"]
    single = a["draw_accuracy"].values[:, -1].mean()
    cells = [f"{100 * (1 - float(a['accuracy'])):.2f}", f"{100 * (1 - single):.2f}"]
    cells += [f"{float(a['log_likelihood']):.3f}", f"{float(a['brier']):.4f}"]
    cells += [f"{float(a['calibration_error']):.3f}"]
    for key in ("disagreement_of_draws", "disagreement_of_chains"):
        value = 100 * float(a[key])
        cells.append("-" if np.isnan(value) else f"{value:.1f}")
    cells += [f"{result['virial'][layer]:.2f}" if result["virial"] else "-" for layer in LAYERS]
    return [name, *cells, f"{result['passes']:.0f}"]


def main() -> None:
    args = arguments(
        __doc__.splitlines()[0],
        images=(10_000, "training images"),
        draws=(100, "draws per chain, a pass over the data each"),
    )
    if args.quick:
        args.images, args.draws = 1000, 10
    pytensor.config.floatX = "float32"
    report = Report("mnist_posterior", args.quick)
    digits = load_mnist()
    X, y = digits.X[: args.images], digits.y[: args.images]
    results = {}
    for name, (temperature, prior_sd) in CASES.items():
        results[name] = sampled(digits, X, y, args.draws, args.seed, temperature, prior_sd)
        print(row(name, results[name]), flush=True)
    passes = results["T = 1, s = 1"]["passes"]
    for name, n in ((SGD, 1), (ENSEMBLE, 4)):
        results[name] = descended(digits, X, y, n, passes, args.seed)
        print(row(name, results[name]), flush=True)
    header = ["", "error %", "last draw", "log lik.", "Brier", "calibration", "draws %", "chains %"]
    header += [f"virial {layer}" for layer in LAYERS] + ["passes"]
    report.table(header, [row(name, result) for name, result in results.items()])
    report.print(
        "\nerror, log likelihood per image, Brier score, expected calibration error: of the\n"
        "average over draws and chains; last draw: mean error of the chains' last draws; draws,\n"
        "chains: disagreement; virial: per element, 1 is right; passes: over the data,\n"
        "in all."
    )
    draw(report, results, digits.y_test)


def draw(report: Report, results: dict, labels: np.ndarray) -> None:
    """Learning curves, reliability, weights."""
    figure, axes = plt.subplots(1, 4, figsize=(16, 4), layout="constrained")
    for name, result in results.items():
        a, colour = result["averages"], COLOURS[name]
        if name in CASES:
            error = 100 * (1 - a["running_accuracy"].values.mean(axis=0))
            axes[0].plot(np.arange(1, len(error) + 1), error, c=colour, label=name)
        else:
            axes[0].axhline(100 * (1 - float(a["accuracy"])), c=colour, ls="--", label=name)
        mean = a["mean"].values
        confidence, right = mean.max(axis=1), mean.argmax(axis=1) == labels
        bins = np.minimum((10 * confidence).astype(int), 9)
        filled = [k for k in range(10) if (bins == k).sum() >= 20]
        axes[1].plot(
            [confidence[bins == k].mean() for k in filled],
            [right[bins == k].mean() for k in filled],
            "o-", ms=3, lw=1, c=colour,
        )  # fmt: skip
        for axis, weights in zip(axes[2:], ("W1", "W2"), strict=True):
            values = result["weights"][weights]
            limit = 3.5 if weights == "W1" else 4
            axis.hist(values, np.linspace(-limit, limit, 141), density=True, histtype="step",
                      color=colour, lw=1)  # fmt: skip
            axis.set(title=f"{weights}: weights of the last draws", yscale="log", xlabel="weight")
    axes[0].set(xlabel="draws averaged, of one chain", ylabel="test error, %", xscale="log")
    axes[0].legend(frameon=False, fontsize=7)
    axes[1].plot([0, 1], [0, 1], c="k", lw=0.5)
    axes[1].set(xlabel="confidence of the average", ylabel="share correct", title="Calibration")
    report.save(figure)


if __name__ == "__main__":
    main()
