r"""Deep Poisson factor analysis with its authors' settings: mSGNHT-S against mSGNHT-E.

High-order paper, section 5.2 and figure 5, on 20 Newsgroups. The model and the local draws are
those of `dpfa.py`, which has longer runs with settings of ours; here the network is moved as by its
authors.

From the paper: 128-64-32 units, batches of 100, D = 40, h = 1e-4 and 1e-5 for S and E. From the
code that the model's authors published: eta = 0.05, 50 updates of the network on each gradient with
new momenta (`frozen_gradient.py`), SGRLD with 0.2 (1 + t)^-0.33 (in our units, drift e / 2), and 3
draws of the local variables after 20 sweeps, the first with all units on. For Wikipedia, the
figure's corpus, it holds r at 1 / 128, and so do we. (For 20 Newsgroups it starts r at 20 and moves
log r by SGLD with 0.002 (1 + t)^-0.33. The first such step is so long that r underflows.) From us:
the corpus, consecutive draws, how test documents are predicted, and the length of the runs: the
authors make 2000 gradients of burn-in, and average 1500 draws.

    python examples/dpfa_authors.py --integrator E --step-size 1e-5
    python examples/dpfa_authors.py --report
"""

import json
import sys
import time

import matplotlib.pyplot as plt
import numpy as np
from common import RESULTS, Report, arguments
from dpfa import (
    BETA,
    THIN,
    DeepPerplexity,
    corpora,
    counts_of,
    deep_poisson_factor_analysis,
    parameters,
)
from dpfa import start_point as small_start
from frozen_gradient import FrozenGradient_E, FrozenGradient_S
from topic_gibbs import TopicGibbs

import pymc_sgmcmc as sgm

LAYERS = (128, 64, 32)
DIFFUSION, R, TOPIC_STEP = 40.0, 1 / 128, 0.2
STILL = 1e-12
"""Step size of what is to be held: every variable needs a sampler."""
FOLDER = RESULTS / "dpfa_authors"


def start_point(model, seed: int) -> dict[str, np.ndarray]:
    """Nearly uniform topics, small weights, and the r of the authors."""
    point = small_start(model, seed)
    point["r_log__"] = np.full_like(point["r_log__"], np.log(R))
    return point


def make_step(model, layers, options, **kwargs):
    """One step of three groups: topics, network, and the gamma's shapes, which are held."""
    by_name = {rv.name: rv for rv in model.free_RVs}
    units = [rv for name, rv in by_name.items() if name[0] in "cw"]
    frozen = {"S": FrozenGradient_S, "E": FrozenGradient_E}[options.integrator]
    return sgm.Groups(
        [
            sgm.SGRLD.on([by_name["topics"]], step_size=sgm.PolynomialDecay(TOPIC_STEP, 1, 0.33)),
            frozen.on(
                units, step_size=options.step_size, diffusion=DIFFUSION, updates=options.repeats
            ),
            sgm.SGLD.on([by_name["r"], by_name["gamma0"]], step_size=STILL),
        ],
        batch_size=options.batch_size,
        replacement=False,
        latents=TopicGibbs(layers, BETA, n_samples=options.samples, burn_in=options.burn_in),
        model=model,
        **kwargs,
    )


def run(options) -> None:
    """One integrator and step size."""
    train, test = corpora(options)
    perplexity = DeepPerplexity(test, np.random.default_rng(1), LAYERS, (10, 5))
    model = deep_poisson_factor_analysis(counts_of(train), LAYERS)
    step = make_step(model, LAYERS, options, thin=THIN, compile_kwargs={"mode": "JAX"})
    point = start_point(step.model, options.seed)
    step.setup_chain(np.random.default_rng(options.seed), tune=0, draws=0)
    n = options.updates // options.every
    record = {
        "command": " ".join(["python", "examples/dpfa_authors.py", *sys.argv[1:]]),
        "integrator": options.integrator,
        "step_size": options.step_size,
        "train": [train.n_documents, train.n_tokens],
        "test": [test.n_documents, perplexity.unseen.n_tokens],
        "batch_size": options.batch_size,
        "averaged": n - n // 2,
        "curve": [],
    }
    began = time.perf_counter()
    for k in range(n):
        for _ in range(options.every // THIN):
            point, [stats] = step.step(point)
            if stats["nonfinite"]:
                raise RuntimeError(stats["warning"].message)
        if k == n // 2:
            perplexity.forget()
        values = parameters(point)
        single, mean = perplexity.add(values)
        record["curve"].append([stats["n_updates"], single, mean])
        record |= {
            "s": round(time.perf_counter() - began),
            "w1": float(np.std(values["w1"])),
        }
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / f"{options.integrator}_{options.step_size:g}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(k, f"{single:.1f} {mean:.1f}", record["s"], flush=True)


def report(options) -> None:
    """Table and figure of all runs."""
    out = Report("dpfa_authors", options.quick)
    records = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    out.print("Perplexity of held-out words: 80% of the words of a test document are seen, the")
    out.print("others predicted, by the mean of the draws of the second half of a run, and by a")
    out.print("draw. w1: sd of the weights between the lowest layers, 0.1 at the start.\n")
    rows = [
        [
            f"mSGNHT-{r['integrator']}, h = {r['step_size']:g}",
            f"{r['curve'][-1][2]:.1f} ({r['averaged']})",
            f"{r['curve'][-1][1]:.1f}",
            r["curve"][-1][0],
            f"{r['curve'][-1][0] * r['batch_size'] / r['train'][0]:.2f}",
            f"{r['w1']:.3f}",
        ]
        for r in records
    ]
    header = ["network", "perplexity (draws)", "last draw", "gradients", "passes"]
    out.table([*header, "w1"], rows)
    out.print()
    for r in records:
        out.print(r["command"])
    out.print(
        f"{records[0]['train'][0]} documents ({records[0]['train'][1]} tokens) train; "
        f"{records[0]['test'][0]} test, {records[0]['test'][1]} of their tokens held out"
    )
    figure, axis = plt.subplots(figsize=(5.5, 3.8), layout="constrained")
    for r in records:
        curve = np.array(r["curve"])
        label = f"mSGNHT-{r['integrator']}, h = {r['step_size']:g}"
        style = "-" if r["integrator"] == "S" else "--"
        colour = "C0" if r["step_size"] > 5e-5 else "C1"
        axis.plot(curve[:, 0] * r["batch_size"], curve[:, 1], style, c=colour, label=label)
    axis.set(xlabel="documents seen", ylabel="perplexity of a draw")
    axis.legend(frameon=False)
    out.save(figure)


def main() -> None:
    global FOLDER
    options = arguments(
        __doc__.splitlines()[0],
        corpus=("20news", "20news"),
        integrator=("S", "S or E, of the network's mSGNHT"),
        step_size=(1e-4, "of mSGNHT for the network"),
        updates=(3500, "gradients"),
        every=(20, "gradients between evaluations"),
        batch_size=(100, "documents per batch"),
        repeats=(50, "updates of the network on each gradient"),
        samples=(3, "draws of the local variables for each gradient"),
        burn_in=(20, "sweeps before them"),
        test=(1000, "test documents"),
        report=(False, "write table and figure of the runs so far"),
    )
    if options.quick:
        FOLDER = RESULTS / "quick" / "dpfa_authors"
        options.updates, options.every, options.test = 16, 8, 50
    (report if options.report else run)(options)


if __name__ == "__main__":
    main()
