"""Deep sigmoid belief networks on binary images (doubly stochastic paper, section 4, Table 2).

One run trains one network, evaluates its draw of best validation on test images, draws a figure,
and puts its line into the table results/sbn.txt:

    python examples/sbn.py --data ocr --layers 200 --latents neural --updates 40000
    python examples/sbn.py --data ocr --layers 200 --evaluate        # saved parameters only

From the paper (section 4.1 and appendix): batches of 100, momentum decay 0.05, Student-t priors
with nu 2.2 and scale 0.09, 5 draws of the latent variables after 5 sweeps of burn-in for Gibbs, 5
weighed ones for the neural proposal with Adam at 0.001, and a learning rate of the mean gradient
among 0.1, 0.02 and 0.01.

From us: the learning rate is constant, or falls (--anneal); each update has a batch and latent
draws of its own, where the paper makes 10 updates on each batch (--updates-per-batch 10); the
integrator is the symmetric splitting, where the paper's eq 4 is Euler's; the injected noise is that
of temperature 1 for the whole posterior; the number of updates; weights begin small and random,
biases of the pixels at their log odds. Where the recognition network cannot follow, or pixel links
take over at once, hidden units freeze at one value: --bias-rate, --recognition-rate and --scale
help.

Test log likelihoods, for random test rows: annealed importance sampling with K = 1000 (the paper's)
and 16 runs, and for the neural proposal importance sampling from the trained network with 100 000
samples (the paper's). Both are too low on average, so the larger one is the better estimate. On
rows simulated from the model annealing backwards gives an upper bound too. Images differ by more
than networks do, so many more test rows are evaluated briefly, which makes the mean over the test
set more precise (`belief_networks.evaluation`).
"""

import json
import shlex
import sys
import time

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor
from belief_networks import (
    JAX,
    annealing,
    belief_network,
    biases_of_units,
    evaluation,
    live_units,
    load_parameters,
    rounded,
    save_parameters,
    simulate,
    some_rows,
    start,
)
from common import RESULTS, Report, arguments
from datasets import (
    Images,
    load_caltech_silhouettes,
    load_deformed_mnist,
    load_mnist_binarised,
    load_ocr_letters,
)

import pymc_sgmcmc as sgm

DATA = {
    "ocr": load_ocr_letters,
    "caltech": load_caltech_silhouettes,
    "mnist": load_mnist_binarised,
    "mnist8m": load_deformed_mnist,
}
PAPER = {
    ("mnist", "gibbs"): {"200": -102.9, "200-200": -100.6, "200-200-200": -97.5},
    ("mnist", "neural"): {"200": -103.2, "200-200": -93.7, "200-200-200": -91.4},
    ("caltech", "gibbs"): {"200": -116.7, "200-200": -100.8, "200-200-200": -96.3},
    ("caltech", "neural"): {"200": -128.8, "200-200": -114.9, "200-200-200": -113.6},
    ("ocr", "gibbs"): {"200": -42.2, "200-200": -39.8, "200-200-200": -38.1},
    ("ocr", "neural"): {"200": -37.5, "200-200": -33.2, "200-200-200": -33.3},
    ("mnist8m", "gibbs"): {"200": -103.2, "200-200": -101.6, "200-200-200": -97.6},
    ("mnist8m", "neural"): {"200": -105.8, "200-200": -96.4, "200-200-200": -93.8},
    ("mnist", "gibbs", "AR"): {"200": -101.1, "200-200": -102.3},
    ("mnist", "neural", "AR"): {"200": -91.2, "200-200": -94.8},
    ("caltech", "gibbs", "AR"): {"200": -101.9, "200-200": -104.4},
    ("caltech", "neural", "AR"): {"200": -110.0, "200-200": -110.8},
    ("mnist8m", "gibbs", "AR"): {"200": -97.9, "200-200": -98.3},
    ("mnist8m", "neural", "AR"): {"200": -91.4, "200-200": -93.5},
    ("ocr", "gibbs", "AR"): {"200": -35.2, "200-200": -36.3},
    ("ocr", "neural", "AR"): {"200": -32.7, "200-200": -38.1},
}
"""Average test log likelihoods of the paper's Table 2."""
BATCH = 100


def train(model: pm.Model, latents, x, updates: int, rates, args, point=None):
    """The step, draws of theta ``thin`` updates apart, and the seconds at which they were made.

    ``rates`` are the first and the last learning rate; between them it falls geometrically.
    """
    h = np.sqrt(rates[0] / len(x))  # lambda is the rate of the mean gradient, eq 4
    fall = np.sqrt(rates[1] / rates[0])

    def sampler(names, rate):
        """Its step size at each update, and the friction of the momentum decay."""
        return sgm.SGHMC_S.on(
            [model[name] for name in names],
            step_size=lambda t: np.sqrt(rate) * h * fall ** (t / updates),
            friction=args.momentum_decay / (np.sqrt(rate) * h),
        )

    biases = biases_of_units(len(args.sizes))
    weights = [v.name for v in model.free_RVs if v.name[0] != "z" and v.name not in biases]
    step = sgm.Groups(
        [sampler(weights, 1.0), sampler(biases, args.bias_rate)],
        batch_size=BATCH,
        data=None if isinstance(x, np.ndarray) else sgm.StreamedData({"images": x}),
        updates_per_batch=args.updates_per_batch,
        thin=max(1, updates // 50),
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
        draws=updates // step.thin,
        tune=0,
        chains=1,
        cores=1,
        initvals=point or start(step.model, x, args.scale, args.seed),
        random_seed=args.seed,
        progressbar=False,
        compute_convergence_checks=False,
        callback=note,
    )
    return step, idata, np.array(seconds)


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
    if "command" not in run:
        # Of saved parameters: what is known of their training stays; there is no network.
        known = runs.get(run["name"], {}).items()
        run = {key: value for key, value in known if not key.startswith("network")} | run
    runs[run["name"]] = run
    for name in runs:  # runs that were made before this was counted
        saved = folder / "sbn" / f"{name.replace(' ', '_')}.npz"
        if "live" not in runs[name] and saved.exists():
            sizes = [int(n) for n in name.split()[2].split("-")]
            runs[name]["live"] = live_units(load_parameters(saved), sizes)
    path.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n")
    header = ["name", "updates", "images seen", "s", "T", "live", "runs", "AIS", "+-", "ESS", "gap"]
    header += ["network", "network +-", "network ESS", "better", "test set", "test set +-", "paper"]
    report = Report("sbn", quick)
    report.lines = [
        "Mean test log likelihood in nats, which every estimate puts too low on average.",
        "AIS: annealed importance sampling, its runs per image, its error (se) as an estimate for",
        "these images, and the mean effective sample size of the runs' weights; gap: from the",
        "lower to the upper bound, on images simulated from the model. network: importance",
        "sampling from the trained network, with the median effective sample size. better: the",
        "larger of the two. test set: that, with the difference between these images and many more",
        "that were evaluated briefly; its error is of the choice of images. T: kinetic temperature",
        "of the last fifth of the updates. live: units of each layer that are 1 in 1% to 99% of",
        "simulated images; all others are constants.",
        "",
    ]
    cells = [[str(runs[name].get(key, "")) for key in header] for name in sorted(runs)]
    report.table(header, cells)
    report.print("")
    for name in sorted(runs):
        report.print(f"{name}: {runs[name]['command']}")
        report.print(f"    {runs[name]['rows']}")
        if "evaluated by" in runs[name]:
            report.print(f"    evaluated by: {runs[name]['evaluated by']}")
    (folder / "sbn.txt").write_text("\n".join(report.lines) + "\n")


def measure(model, theta, test, network, args) -> dict:
    """Evaluate a network on test images."""
    return evaluation(
        model,
        theta,
        some_rows(test, args.brief_rows),
        args.test_rows,
        network,
        args.importance,
        layers=len(args.sizes),
        chains=args.chains,
        temperatures=args.temperatures,
        seed=args.seed,
    )


def main():
    args = arguments(
        __doc__.splitlines()[0],
        data=("ocr", "ocr, caltech, mnist, or mnist8m: 8.1 million deformed digits, streamed"),
        layers=("200", "units of each hidden layer, the one next to the pixels first"),
        latents=("gibbs", "gibbs or neural"),
        autoregressive=(False, "links within layers"),
        updates=(20_000, "updates of theta"),
        learning_rate=(0.02, "of the mean gradient"),
        recognition_rate=(0.001, "learning rate of the recognition network"),
        bias_rate=(1.0, "learning rate of the units' biases, relative to that of all others"),
        scale=(0.1, "sd of the initial weights between layers"),
        momentum_decay=(0.05, "fraction of the momentum lost per update"),
        temperatures=(1000, "steps of the annealing"),
        test_rows=(100, "test images, at random, that are evaluated with all temperatures"),
        brief_rows=(1000, "test images that are evaluated briefly; 0 for all"),
        chains=(16, "annealing runs per test image"),
        importance=(100_000, "importance samples per test image, from a trained network"),
        anneal=(1.0, "the last learning rate relative to the first; it falls geometrically"),
        updates_per_batch=(1, "updates in a row with one batch (the paper: 10)"),
        then_gibbs=(0, "further updates by Gibbs, to see whether the proposal's bias mattered"),
        normal=(0.0, "sd of a normal prior instead of Student's t (0: Student's t)"),
        burn_in=(5, "sweeps of burn-in of Gibbs"),
        persistent=(False, "Gibbs chains start where their image's last one ended"),
        evaluate=(False, "evaluate the saved parameters again, by annealing alone"),
    )
    if args.quick:
        args.updates, args.temperatures, args.importance = 200, 20, 100
        args.test_rows, args.brief_rows = 20, 50
    args.sizes = [int(n) for n in args.layers.split("-")]
    kind = "arsbn" if args.autoregressive else "sbn"
    name = f"{kind}_{args.data}_{args.layers}_{args.latents}"
    name += f"{'_persistent' if args.persistent else ''}{'_normal' if args.normal else ''}"
    pytensor.config.floatX = "float32"
    images = DATA[args.data]()
    rows = images.train if isinstance(images.train, np.ndarray) else images.train[:BATCH]
    model = belief_network(rows, args.sizes, args.autoregressive, args.normal)
    saved = (RESULTS / "quick" if args.quick else RESULTS) / "sbn" / f"{name}.npz"
    if args.evaluate:
        theta = load_parameters(saved)
        command = shlex.join(["python", "examples/sbn.py", *sys.argv[1:]])
        run = {"live": live_units(theta, args.sizes), "evaluated by": command}
        run |= measure(model, theta, images.test, None, args)
        print(json.dumps(run, indent=1))
        add_to_table({"name": name.replace("_", " ")} | run, args.quick)
    else:
        train_and_report(name, model, images, saved, args)


def train_and_report(name: str, model, images: Images, saved, args) -> None:
    """One run: its own table and figure, its parameters, and its line of the common table."""
    report = Report(name, args.quick, "sbn")
    z = [f"z{k + 1}" for k in range(len(args.sizes))]
    neural = args.latents == "neural"
    latents = (
        sgm.NeuralImportance(
            z, 5, learning_rate=args.recognition_rate, autoregressive=args.autoregressive
        )
        if neural
        else sgm.Gibbs(z, n_samples=5, burn_in=args.burn_in, persistent=args.persistent)
    )
    rates = args.learning_rate, args.learning_rate * args.anneal
    step, idata, seconds = train(model, latents, images.train, args.updates, rates, args)
    took = seconds[-1]
    report.print(
        f"{len(images.train)} images; {args.updates} updates in {took:.0f} s, "
        f"{1000 * (seconds[-1] - seconds[1]) / (len(seconds) - 2) / step.thin:.1f} ms per update"
    )
    # of the weights, nearly all parameters; the first group of two
    temperature = idata.sample_stats.sghmc_s_1_kinetic_temperature.values[0, -10:].mean()
    report.print(f"kinetic temperature of the last fifth: {temperature:.2f}")
    size = np.abs(idata.posterior["w1"].values[0, -1]).sum(axis=1)
    used = np.sum(size > np.sort(size)[-20:].mean() / 2)
    report.print(f"{used} of {len(size)} units have weights half as large as the 20 largest")

    def validation(draws):
        found = annealing(
            model,
            draws,
            some_rows(images.valid, 50),
            layers=len(args.sizes),
            chains=8,
            temperatures=args.temperatures // 10,
            seed=args.seed,
        )
        return found.mean_log_p.values[0], found.mean_log_p_mcse.values[0]

    shown = np.unique(np.geomspace(1, len(seconds), 8).round().astype(int)) - 1
    seen = BATCH * step.thin * (shown + 1) // args.updates_per_batch
    mean, error = validation(idata.isel(draw=shown))
    report.table(
        ["images seen", "s", "validation (50 images, annealed briefly)", "+-"],
        [[n, f"{seconds[k]:.0f}", f"{m:.2f}", f"{e:.2f}"] for n, k, m, e in
         zip(seen, shown, mean, error, strict=True)],
    )  # fmt: skip
    posterior = idata.posterior.to_dataset()
    if args.then_gibbs:
        end = {n: v.values[0, -1] for n, v in posterior.items()}
        gibbs = sgm.Gibbs(z, n_samples=5, burn_in=args.burn_in)
        _, more, _ = train(
            model, gibbs, images.train, args.then_gibbs, (rates[1], rates[1]), args, end
        )
        [then], [then_error] = validation(more.isel(draw=[-1]))
        report.print(
            f"\nafter {args.then_gibbs} further updates by Gibbs: {then:.2f} +- {then_error:.2f}"
        )
    chosen = int(shown[mean.argmax()])
    best = rounded(posterior.isel(draw=[chosen]))
    report.print(f"\nevaluated: the draw of best validation, after {seen[mean.argmax()]} images")
    if save_parameters(saved, best):
        report.print(f"parameters, in half precision: {saved.name}")
    run = {
        "name": name.replace("_", " "),
        "command": report.lines[0].removeprefix("$ "),
        "updates": args.updates,
        "images seen": BATCH * args.updates // args.updates_per_batch,
        "s": round(took),
        "paper": ""
        if args.normal
        else PAPER[args.data, args.latents, *(["AR"] if args.autoregressive else [])].get(
            args.layers, ""
        ),
        "T": f"{temperature:.2f}",
        "live": live_units(best, args.sizes),
        "curve": {
            "s": seconds[shown].round(1).tolist(),
            "images seen": seen.tolist(),
            "log p": mean.round(2).tolist(),
        },
        **measure(model, best, images.test, latents.trained(step) if neural else None, args),
    }
    if neural:
        ess = idata.sample_stats.importance_ess.values[0]
        report.print(f"\nEffective sample size of the 5 weights, last draw: {ess[-1]:.2f}")
    report.print("\n" + json.dumps(run, indent=1))
    hidden = np.zeros(images.shape, dtype=bool)
    hidden[images.shape[0] // 2 :] = True
    hidden = hidden.ravel()
    completion = sgm.complete(
        best,
        z,
        missing={"images": hidden},
        data={"images": images.test[:16]},
        model=model,
        random_seed=args.seed,
        compile_kwargs=JAX,
    ).completed.values
    _, _, drawn = simulate(best, len(args.sizes), 48, args.seed)
    curve = (seconds[shown], seen, mean, error)
    report.save(figure(images, drawn, best, completion, hidden, curve, name))
    add_to_table(run, args.quick)


if __name__ == "__main__":
    main()
