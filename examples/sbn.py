"""Deep sigmoid belief networks on binary images (doubly stochastic paper, section 4, Table 2).

One run trains one network, evaluates its last draw of theta on test images, draws a figure, and
puts its line into the table results/sbn.txt:

    python examples/sbn.py --data ocr --layers 200 --latents neural --updates 40000

The paper's settings (section 4.1) are the defaults: batches of 100, momentum decay 0.05, Student-t
priors with nu 2.2 and scale 0.09, 5 draws of the latent variables after 5 of burn-in for Gibbs, 5
weighed ones for the neural proposal with Adam at 0.001. Its learning rate of the mean gradient is
0.1, 0.02 or 0.01. Weights begin small and random, biases of the pixels at their log odds. Where the
recognition network cannot follow, or pixel links take over at once, hidden units fall out of use:
--recognition-rate and --scale help.

Test log likelihoods: annealed importance sampling with K = 1000 on the first test rows, and for the
neural proposal importance sampling from the trained network too. Both are too low, by half their
squared error per row.
"""

import json
import time

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from common import RESULTS, Report, arguments
from datasets import (
    Images,
    load_caltech_silhouettes,
    load_mnist_binarised,
    load_ocr_letters,
)
from scipy.special import expit, logit

import pymc_sgmcmc as sgm

DATA = {
    "ocr": load_ocr_letters,
    "caltech": load_caltech_silhouettes,
    "mnist": load_mnist_binarised,
}
PAPER = {
    ("mnist", "gibbs"): {"200": -102.9, "200-200": -100.6, "200-200-200": -97.5},
    ("mnist", "neural"): {"200": -103.2, "200-200": -93.7, "200-200-200": -91.4},
    ("caltech", "gibbs"): {"200": -116.7, "200-200": -100.8, "200-200-200": -96.3},
    ("caltech", "neural"): {"200": -128.8, "200-200": -114.9, "200-200-200": -113.6},
    ("ocr", "gibbs"): {"200": -42.2, "200-200": -39.8, "200-200-200": -38.1},
    ("ocr", "neural"): {"200": -37.5, "200-200": -33.2, "200-200-200": -33.3},
    ("mnist", "gibbs", "AR"): {"200": -101.1, "200-200": -102.3},
    ("mnist", "neural", "AR"): {"200": -91.2, "200-200": -94.8},
    ("caltech", "gibbs", "AR"): {"200": -101.9, "200-200": -104.4},
    ("caltech", "neural", "AR"): {"200": -110.0, "200-200": -110.8},
    ("ocr", "gibbs", "AR"): {"200": -35.2, "200-200": -36.3},
    ("ocr", "neural", "AR"): {"200": -32.7, "200-200": -38.1},
}
"""Average test log likelihoods of the paper's Table 2."""
JAX = {"mode": "JAX"}
BATCH = 100


def prior(name: str, shape, dims) -> pt.TensorVariable:
    """Sparse weights: Student's t with the paper's numbers."""
    return pm.StudentT(name, nu=2.2, mu=0, sigma=0.09, shape=shape, dims=dims)


def belief_network(x: np.ndarray, layers: list[int], autoregressive: bool = False) -> pm.Model:
    """A deep sigmoid belief network; z1 is the layer next to the pixels.

    An autoregressive one has links within layers too, each unit to those after it (eq 13, 14).
    """
    coords = {"row": np.arange(len(x)), "pixel": np.arange(x.shape[1])}
    coords |= {f"unit{k}": np.arange(n) for k, n in enumerate(layers, 1)}
    with pm.Model(coords=coords) as model:
        images = pm.Data("images", x, dims=("row", "pixel"))
        log_odds = prior("b", layers[-1], f"unit{len(layers)}")
        for k in range(len(layers), 0, -1):
            unit, size = f"unit{k}", layers[k - 1]
            if autoregressive:
                # a layer given itself is no distribution of PyMC's: coins, and a correction
                z = pm.Bernoulli(f"z{k}", 0.5, dims=("row", unit))
                log_odds = log_odds + z @ pt.triu(prior(f"u{k}", (size, size), None), 1)
                coins = z * log_odds - pt.softplus(log_odds) + np.log(2)
                pm.Potential(f"layer{k}", coins, dims=("row", unit))
            else:
                z = pm.Bernoulli(f"z{k}", logit_p=log_odds, dims=("row", unit))
            below, n_below = (f"unit{k - 1}", layers[k - 2]) if k > 1 else ("pixel", x.shape[1])
            log_odds = z @ prior(f"w{k}", (size, n_below), (unit, below))
            log_odds = log_odds + prior(f"c{k}", n_below, below)
        if autoregressive:
            links = prior("s", (x.shape[1], x.shape[1]), None)
            log_odds = log_odds + pt.cast(images, pytensor.config.floatX) @ pt.triu(links, 1)
        pm.Bernoulli("x", logit_p=log_odds, observed=images, dims=("row", "pixel"))
    return model


def start(model: pm.Model, x: np.ndarray, scale: float, seed: int) -> dict[str, np.ndarray]:
    """Random weights between layers, smaller ones within, and the pixels' log odds as biases."""
    rng = np.random.default_rng(seed)
    point = {
        name: ((scale if name.startswith("w") else 0.1) * rng.normal(size=value.shape)).astype(
            value.dtype
        )
        for name, value in model.initial_point().items()
    }
    mean = (x.sum(axis=0) + 0.5) / (len(x) + 1)
    return point | {"c1": logit(mean).astype(point["c1"].dtype)}


def train(model: pm.Model, latents, x: np.ndarray, args):
    """The step, draws of theta ``thin`` updates apart, and the seconds at which they were made."""
    step = sgm.SGHMC_S.from_momentum_decay(
        learning_rate=args.learning_rate,
        momentum_decay=args.momentum_decay,
        per_datum=len(x),
        batch_size=BATCH,
        thin=max(1, args.updates // 50),
        latents=latents,
        model=model,
        compile_kwargs=JAX,
    )
    seconds, began = [], time.perf_counter()

    def note(trace, draw):
        seconds.append(time.perf_counter() - began)
        if draw.draw_idx % 5 == 4:
            print(f"  {(draw.draw_idx + 1) * step.thin} updates, {seconds[-1]:.0f} s", flush=True)

    idata = pm.sample(
        model=step.model,
        step=step,
        draws=args.updates // step.thin,
        tune=0,
        chains=1,
        cores=1,
        initvals=start(step.model, x, args.scale, args.seed),
        random_seed=args.seed,
        progressbar=False,
        compute_convergence_checks=False,
        callback=note,
    )
    return step, idata, np.array(seconds)


def evaluate(model, latents, draws, x, args, n_samples: int, n_temperatures: int):
    """Annealed importance sampling on rows x, along the paper's path."""
    return sgm.log_marginal_likelihood(
        draws,
        [f"z{k + 1}" for k in range(len(args.sizes))],
        data={"images": x},
        n_samples=n_samples,
        n_temperatures=n_temperatures,
        path="parameters",
        model=model,
        random_seed=args.seed,
        compile_kwargs=JAX,
    )


def draw_units(rng, log_odds: np.ndarray, links: np.ndarray | None):
    """Draw a layer, and its probabilities: each unit given those before it, if there are links."""
    if links is None:
        p = expit(log_odds)
        return rng.random(p.shape) < p, p
    drawn, p = np.zeros((2, *log_odds.shape))
    for k in range(log_odds.shape[1]):
        p[:, k] = expit(log_odds[:, k] + drawn[:, :k] @ links[:k, k])
        drawn[:, k] = rng.random(len(p)) < p[:, k]
    return drawn, p


def samples(theta, n_layers: int, n: int, seed: int) -> np.ndarray:
    """Pixel probabilities of n images drawn from the model, layer by layer."""
    rng = np.random.default_rng(seed)
    theta = {name: draws.values[0, 0] for name, draws in theta.items()}
    log_odds = np.tile(theta["b"], (n, 1))
    for k in range(n_layers, 0, -1):
        z, _ = draw_units(rng, log_odds, theta.get(f"u{k}"))
        log_odds = z @ theta[f"w{k}"] + theta[f"c{k}"]
    return draw_units(rng, log_odds, theta.get("s"))[1]


def montage(ax, images: np.ndarray, shape: tuple[int, int], columns: int, title: str) -> None:
    """Show images side by side."""
    rows = len(images) // columns
    grid = images[: rows * columns].reshape(rows, columns, *shape)
    grid = np.pad(grid, [(0, 0), (0, 0), (0, 1), (0, 1)], constant_values=np.nan)
    ax.imshow(grid.transpose(0, 2, 1, 3).reshape(rows * (shape[0] + 1), -1), cmap="gray")
    ax.set_title(title, fontsize=9)
    ax.axis("off")


def figure(images: Images, drawn, theta, completion, hidden, curve, title: str):
    """Images and samples, features, completions, and the log likelihood as it grew."""
    fig, axes = plt.subplots(2, 3, figsize=(12, 7.5), constrained_layout=True)
    fig.suptitle(title, fontsize=10)
    montage(axes[0, 0], images.train[:48].astype(float), images.shape, 8, "training images")
    montage(axes[0, 1], drawn, images.shape, 8, "samples: probabilities of pixels")
    test = images.test[: len(completion)].astype(float)
    hollow = np.where(hidden, 0.5, test)
    stacked = np.stack([test, hollow, completion], axis=1).reshape(-1, test.shape[1])
    montage(axes[1, 0], stacked, images.shape, 12, "test image, lower half hidden, completed")
    w = theta["w1"].values[0, 0]
    largest = np.argsort(-np.abs(w).sum(axis=1))[:48]
    features = w[largest] / np.abs(w[largest]).max(axis=1, keepdims=True)
    montage(axes[0, 2], features, images.shape, 8, "features: the 48 largest rows of w1")
    for ax, x, label in ((axes[1, 1], curve[0], "seconds"), (axes[1, 2], curve[1], "images seen")):
        ax.errorbar(x, curve[2], yerr=2 * curve[3], fmt=".-")
        ax.set(xlabel=label, ylabel="mean log p(x | theta), validation")
        ax.ticklabel_format(axis="x", scilimits=(-3, 4))
        ax.grid(alpha=0.3)
    return fig


def add_to_table(run: dict, quick: bool) -> None:
    """Replace or add a run's line, and write the table again."""
    folder = RESULTS / "quick" if quick else RESULTS
    path = folder / "sbn.json"
    runs = json.loads(path.read_text()) if path.exists() else {}
    runs[run["name"]] = run
    path.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n")
    header = ["name", "updates", "images seen", "s", "AIS", "+-", "network", "paper"]
    report = Report("sbn", quick)
    report.lines = [
        "Mean test log likelihood in nats. AIS: annealed importance sampling, with its error (se)",
        "as an estimate for these images; network: importance sampling from the trained network.",
        "",
    ]
    report.table(header, [[str(runs[name][key]) for key in header] for name in sorted(runs)])
    report.print("")
    for name in sorted(runs):
        report.print(f"{name}: {runs[name]['command']}")
        report.print(f"    AIS on {runs[name]['rows']}")
    (folder / "sbn.txt").write_text("\n".join(report.lines) + "\n")


def main():
    args = arguments(
        __doc__.splitlines()[0],
        data=("ocr", "ocr, caltech or mnist"),
        layers=("200", "units of each hidden layer, the one next to the pixels first"),
        latents=("gibbs", "gibbs or neural"),
        autoregressive=(False, "links within layers"),
        updates=(20_000, "updates of theta"),
        learning_rate=(0.02, "of the mean gradient"),
        recognition_rate=(0.001, "learning rate of the recognition network"),
        scale=(0.1, "sd of the initial weights between layers"),
        momentum_decay=(0.05, "fraction of the momentum lost per update"),
        temperatures=(1000, "steps of the annealing"),
        test_rows=(500, "test images for the annealing"),
        chains=(2, "annealing runs per test image"),
    )
    if args.quick:
        args.updates, args.temperatures, args.test_rows = 200, 20, 50
    args.sizes = [int(n) for n in args.layers.split("-")]
    kind = "arsbn" if args.autoregressive else "sbn"
    name = f"{kind}_{args.data}_{args.layers}_{args.latents}"
    report = Report(name, args.quick)
    report.lines[0] = report.lines[0].replace(f"{name}.py", "sbn.py")
    pytensor.config.floatX = "float32"
    images = DATA[args.data]()
    model = belief_network(images.train, args.sizes, args.autoregressive)
    z = [f"z{k + 1}" for k in range(len(args.sizes))]
    neural = args.latents == "neural"
    latents = (
        sgm.NeuralImportance(
            z, 5, learning_rate=args.recognition_rate, autoregressive=args.autoregressive
        )
        if neural
        else sgm.Gibbs(z, n_samples=5, burn_in=5)
    )
    step, idata, seconds = train(model, latents, images.train, args)
    took = seconds[-1]
    report.print(
        f"{len(images.train)} images; {args.updates} updates in {took:.0f} s, "
        f"{1000 * (seconds[-1] - seconds[1]) / (len(seconds) - 2) / step.thin:.1f} ms per update"
    )
    temperature = idata.sample_stats.kinetic_temperature.values[0, -10:].mean()
    report.print(f"kinetic temperature of the last fifth: {temperature:.2f}")
    size = np.abs(idata.posterior["w1"].values[0, -1]).sum(axis=1)
    used = np.sum(size > np.sort(size)[-20:].mean() / 2)
    report.print(f"{used} of {len(size)} units have weights half as large as the 20 largest")
    shown = np.unique(np.geomspace(1, len(seconds), 8).round().astype(int)) - 1
    valid = evaluate(
        model, latents, idata.isel(draw=shown), images.valid[:100], args, 4, args.temperatures // 5
    )
    seen = BATCH * step.thin * (shown + 1)
    mean, error = valid.mean_log_p.values[0], valid.mean_log_p_mcse.values[0]
    report.table(
        ["images seen", "s", "validation (100 images)", "+-"],
        [[n, f"{seconds[k]:.0f}", f"{m:.2f}", f"{e:.2f}"] for n, k, m, e in
         zip(seen, shown, mean, error, strict=True)],
    )  # fmt: skip
    last = idata.isel(draw=slice(-1, None))
    test = images.test[: args.test_rows]
    ais = evaluate(model, latents, last, test, args, args.chains, args.temperatures)
    run = {
        "name": name.replace("_", " "),
        "command": report.lines[0].removeprefix("$ "),
        "updates": args.updates,
        "images seen": BATCH * args.updates,
        "s": round(took),
        "AIS": f"{ais.mean_log_p.item():.1f}",
        "+-": f"{ais.mean_log_p_mcse.item():.2f}",
        "network": "",
        "rows": f"{len(test)} test images, sd of their mean "
        f"{ais.log_p.values.std() / np.sqrt(len(test)):.1f}",
        "paper": PAPER[args.data, args.latents, *(["AR"] if args.autoregressive else [])].get(
            args.layers, ""
        ),
    }
    if neural:
        ess = idata.sample_stats.importance_ess.values[0]
        report.print(f"\nEffective sample size of the 5 weights, last draw: {ess[-1]:.2f}")
        from_network = sgm.log_marginal_likelihood(
            last,
            latents.trained(step),
            data={"images": test},
            method="importance",
            n_samples=2000,
            model=model,
            random_seed=args.seed,
            compile_kwargs=JAX,
        )
        run["network"] = f"{from_network.mean_log_p.item():.1f}"
    report.print("\n" + json.dumps(run, indent=1))
    hidden = np.zeros(images.shape, dtype=bool)
    hidden[images.shape[0] // 2 :] = True
    hidden = hidden.ravel()
    completion = sgm.complete(
        last,
        z,
        missing={"images": hidden},
        data={"images": images.test[:16]},
        model=model,
        random_seed=args.seed,
        compile_kwargs=JAX,
    ).completed.values
    drawn = samples(last.posterior, len(args.sizes), 48, args.seed)
    curve = (seconds[shown], seen, mean, error)
    report.save(figure(images, drawn, last.posterior, completion, hidden, curve, name))
    add_to_table(run, args.quick)


if __name__ == "__main__":
    main()
