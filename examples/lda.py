r"""Topics of a corpus by minibatch MCMC: semi-collapsed latent Dirichlet allocation.

High-order paper, section 5.1, Table 1 and Figure 3 (and SGNHT paper, section 5.2). The topics are
sampled; the documents' topic proportions are integrated out, the topics of the tokens of each batch
by Gibbs sampling inside the update (`token_gibbs.py`). 80% of the documents train; of the rest
one half of the words is predicted from the other half.

    python examples/lda.py --corpus kos --batch-size 5     # one corpus and batch size
    python examples/lda.py --report                        # table and figure of all runs so far

The paper's corpus, ICML abstracts, is not available: KOS, NIPS and Reuters are used instead. Runs
of the paper's size, and all samplers under one prior: `lda_paper_size.py`.
"""

import json
import sys
import time

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from common import RESULTS, Report, arguments, with_step_size
from datasets import load_documents
from token_gibbs import BatchGibbs, Corpus, DocumentLogLik, Perplexity, topic_counts

import pymc_sgmcmc as sgm
from pymc_sgmcmc.samplers.sgrld import unconstrained

N_TOPICS, ALPHA, BETA = 30, 0.1, 0.1
SWEEPS = {"burn_in": 5, "n_samples": 5}
DIFFUSION = 0.75
STEPS = [5e-4, 2.5e-3, 1e-2, 4e-2]
"""Of the momentum samplers: those of the paper's Figure 3, and a larger one."""
SGRLD_STEPS = [1e-3, 3e-3, 1e-2, 3e-2]
METHODS = {
    "MSGNHT_S": (sgm.MSGNHT_S, {"diffusion": DIFFUSION}, STEPS),
    "MSGNHT_E": (sgm.MSGNHT_E, {"diffusion": DIFFUSION}, STEPS),
    "SGHMC_S": (sgm.SGHMC_S, {"friction": DIFFUSION}, STEPS),
    "SGHMC_E": (sgm.SGHMC_E, {"friction": DIFFUSION}, STEPS),
    "SGNHT": (sgm.SGNHT, {"diffusion": DIFFUSION}, STEPS),
    "SGRLD": (sgm.SGRLD, {}, SGRLD_STEPS),
}
PAPER = {
    "MSGNHT_S": 939.67, "MSGNHT_E": 960.56, "SGHMC_S": 1004.73, "SGHMC_E": 1017.51,
    "SGRLD": 1154.68, "Gibbs": 907.84,
}  # fmt: skip
FOLDER = RESULTS / "lda"


def topic_model(corpus: Corpus, form: str) -> pm.Model:
    """LDA with the token's topics drawn inside the likelihood.

    The topics are softmax(theta), theta ~ N(0.1, 1) (``"normal"``, the paper's for all samplers but
    SGRLD and Gibbs); or pi ~ Dirichlet(0.1), as such (``"simplex"``), which SGRLD samples in
    expanded-mean form, or as g / sum(g) with g ~ Gamma(0.1, 1) (``"gamma"``): the same prior, for
    samplers that move log g.
    """
    coords = {
        "topic": range(N_TOPICS),
        "word": range(corpus.n_words),
        "document": range(corpus.n_documents),
    }
    with pm.Model(coords=coords) as model:
        if form == "simplex":
            pi = pm.Dirichlet("pi", np.full(corpus.n_words, BETA), dims=("topic", "word"))
            log_pi = pt.log(pi)
        else:
            theta = (
                pt.log(pm.Gamma("g", BETA, 1, dims=("topic", "word")))
                if form == "gamma"
                else pm.Normal("theta", 0.1, 1, dims=("topic", "word"))
            )
            log_pi = theta - pt.logsumexp(theta, axis=1, keepdims=True)
        number = pm.Data("number", np.arange(corpus.n_documents), dims="document")
        # not pm.Data, which would copy the tokens into every result
        tokens = [pytensor.shared(array) for array in (corpus.word, corpus.count, corpus.first)]
        log_lik = DocumentLogLik(ALPHA, **SWEEPS)(number, log_pi, *tokens)
        pm.Potential("tokens", log_lik, dims="document")
    return model


def topics(point: dict) -> np.ndarray:
    """Topic probabilities, shape (topics, words), of a point of either form."""
    [theta] = (np.asarray(value, dtype=float) for value in point.values())
    if "pi_simplex__" in point:
        theta = np.concatenate([theta, -theta.sum(axis=1, keepdims=True)], axis=1)
    pi = np.exp(theta - theta.max(axis=1, keepdims=True))
    return pi / pi.sum(axis=1, keepdims=True)


def start_point(model: pm.Model, n_words: int, seed: int) -> dict:
    """Give all samplers the same start: nearly uniform topics."""
    theta = 0.5 * np.random.default_rng(seed).normal(size=(N_TOPICS, n_words))
    [(name, old)] = model.initial_point().items()
    if name == "pi_simplex__":
        theta = unconstrained(pt.as_tensor(np.exp(theta))).eval()
    elif name == "g_log__":
        theta += np.log(BETA)  # the prior mean of g
    return {name: theta.astype(old.dtype)}


def learning_curve(step, start: dict, perplexity: Perplexity, seed: int, n_evaluations: int):
    """Perplexity of the draw at each evaluation, and of the mean of the last half of them."""
    perplexity.forget()
    step.setup_chain(np.random.default_rng(seed), tune=0, draws=n_evaluations)
    point, curve, mean = start, [], np.nan
    for k in range(n_evaluations):
        point, [stats] = step.step(point)
        if stats["nonfinite"]:
            return [*curve, *[np.nan] * (n_evaluations - k)], np.nan, np.nan
        if k == n_evaluations // 2:
            perplexity.forget()
        single, mean = perplexity.add(topics(point))
        curve.append(single)
    return curve, mean, stats.get("kinetic_temperature", np.nan)


def run(options) -> None:
    """All samplers and batch Gibbs on one corpus; curves go to a file."""
    whole = Corpus.of(*load_documents(options.corpus))
    rng = np.random.default_rng(0)
    order = rng.permutation(whole.n_documents)
    n_test = whole.n_documents // 5
    test, train = whole.documents(order[:n_test]), whole.documents(order[n_test:])
    perplexity = Perplexity(test, rng, ALPHA)
    every = options.updates // options.evaluations
    rows = []
    record = {
        "command": " ".join(["python", "examples/lda.py", *sys.argv[1:]]),
        "corpus": options.corpus,
        "batch_size": options.batch_size,
        "updates": every * options.evaluations,
        "every": every,
        "train": [train.n_documents, train.n_tokens],
        "test": [test.n_documents, test.n_tokens],
        "floatX": pytensor.config.floatX,
        "rows": rows,
    }

    def add(**row) -> None:
        rows.append(row)
        shown = {k: v for k, v in row.items() if k != "curve"}
        print(f"{row['curve'][-1]:9.1f}", json.dumps(shown), flush=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / f"{options.corpus}_{options.batch_size}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")

    for name, (sampler, settings, steps) in METHODS.items():
        if options.methods and name not in options.methods.split(","):
            continue
        model = topic_model(train, "simplex" if sampler is sgm.SGRLD else "normal")
        began = time.perf_counter()
        with model:
            step = sampler(
                step_size=steps[0], batch_size=options.batch_size, thin=every, replacement=True,
                compile_kwargs={"mode": "NUMBA"}, **settings,
            )  # fmt: skip
        print(f"{name}: compiled in {time.perf_counter() - began:.0f} s", flush=True)
        for h in steps:
            with_step_size(step, h)
            for seed in range(options.seeds):
                began = time.perf_counter()
                start = start_point(model, train.n_words, seed)
                curve, mean, temperature = learning_curve(
                    step, start, perplexity, seed, options.evaluations
                )
                seconds = time.perf_counter() - began
                add(
                    method=name, step_size=h, seed=seed, perplexity=mean, curve=curve,
                    temperature=temperature, seconds=round(seconds, 1),
                )  # fmt: skip
    for seed in range(options.seeds):
        began = time.perf_counter()
        gibbs = BatchGibbs(train, N_TOPICS, ALPHA, BETA, seed)
        perplexity.forget()
        curve = []
        for k in range(options.evaluations):
            for _ in range(options.sweeps // options.evaluations):
                gibbs.sweep()
            if k == options.evaluations // 2:
                perplexity.forget()
            single, mean = perplexity.add(gibbs.pi)
            curve.append(single)
        add(
            method="Gibbs", step_size=None, seed=seed, perplexity=mean, curve=curve,
            sweeps=options.sweeps, seconds=round(time.perf_counter() - began, 1),
        )  # fmt: skip


def best(rows: list[dict], method: str):
    """Step size, mean over seeds and half the range of the lowest perplexity of a method."""
    found = {}
    for row in rows:
        if row["method"] == method:
            found.setdefault(row["step_size"], []).append(row["perplexity"])
    if not found:
        return None, np.nan, np.nan
    scores = {h: np.mean(v) for h, v in found.items()}
    h = min(scores, key=lambda h: np.nan_to_num(scores[h], nan=np.inf))
    return h, scores[h], np.ptp(found[h]) / 2


def plot_curve(axis, seen, rows, method, h, style, label) -> None:
    """Learning curve, mean over seeds; it ends where a chain diverged."""
    curves = [r["curve"] for r in rows if (r["method"], r["step_size"]) == (method, h)]
    if curves:
        axis.plot(seen, np.mean(curves, axis=0), style, label=label)


def draws_per_second(corpus: Corpus, n_sweeps: int) -> tuple[float, float]:
    """Token draws per CPU second of batch Gibbs, and of the gradient of 100 documents."""
    rates = []
    gibbs = BatchGibbs(corpus, N_TOPICS, ALPHA, BETA, seed=0)
    documents = np.arange(100)
    factor, log_pi = np.ones(100), np.log(gibbs.pi)
    sweeps = 1 + sum(SWEEPS.values())
    per_batch = sweeps * corpus.documents(documents).n_tokens
    tokens = (corpus.word, corpus.count, corpus.first, ALPHA, *SWEEPS.values())
    for function, n_draws in [
        (gibbs.sweep, corpus.n_tokens),
        (lambda: topic_counts(factor, documents, log_pi, *tokens), per_batch),
    ]:
        function()
        began = time.process_time()
        for _ in range(n_sweeps):
            function()
        rates.append(n_sweeps * n_draws / (time.process_time() - began))
    return rates[0], rates[1]


def report(options) -> None:
    """Table 1 and Figure 3 of all runs."""
    out = Report("lda", options.quick)
    records = [json.loads(path.read_text()) for path in FOLDER.glob("*.json")]
    records.sort(key=lambda r: (r["corpus"], r["batch_size"]))
    out.print("Held-out perplexity (mean prediction of the draws of the last half of a run; mean")
    out.print("over seeds +- half their range), each method at the best of its step sizes.\n")
    names = [f"{r['corpus']}, {r['batch_size']}" for r in records]
    table = []
    for method in ["MSGNHT_S", "MSGNHT_E", "SGHMC_S", "SGHMC_E", "SGNHT", "SGRLD", "Gibbs"]:
        cells = []
        for r in records:
            h, value, spread = best(r["rows"], method)
            n_seeds = 1 + max(row["seed"] for row in r["rows"])
            shown = f"{value:.0f}" + (f" +- {spread:.0f}" if n_seeds > 1 else "")
            cells.append("not run" if np.isnan(value) else shown + (f" ({h:g})" if h else ""))
        table.append([method, PAPER.get(method, ""), *cells])
    out.table(["method", "ICML (paper), 5", *names], table)
    gibbs, gradient = draws_per_second(Corpus.of(*load_documents("kos")), n_sweeps=20)
    out.print(
        f"\nToken draws per CPU second on one core, K = {N_TOPICS}: {gibbs:.2g} in batch Gibbs, "
        f"{gradient:.2g} in the gradient of 100 documents."
    )
    for r in records:
        out.print(f"\n{r['corpus']}, batches of {r['batch_size']}, {r['floatX']}: {r['command']}")
        out.print(
            f"{r['train'][0]} documents ({r['train'][1]} tokens) train, {r['test'][0]} test; "
            f"{r['updates']} updates, {r['updates'] * r['batch_size'] / r['train'][0]:.1f} passes; "
            f"batch Gibbs: {options.sweeps} sweeps"
        )
        rows = [
            [
                row["method"], row["step_size"] or "", row["seed"], f"{row['perplexity']:.1f}",
                f"{row['curve'][-1]:.1f}", f"{row.get('temperature', np.nan):.2f}",
                f"{1e3 * row['seconds'] / r['updates']:.1f}" if row["step_size"] else "",
            ]
            for row in r["rows"]
        ]  # fmt: skip
        out.table(
            ["method", "step size", "seed", "perplexity", "last draw", "temperature", "ms/update"],
            rows,
        )
    figure, axes = plt.subplots(
        len(records), len(STEPS), figsize=(11, 3 * len(records)), squeeze=False, sharey="row"
    )
    for line, r in zip(axes, records, strict=True):
        seen = r["batch_size"] * r["every"] * np.arange(1, 1 + r["updates"] // r["every"])
        gibbs = best(r["rows"], "Gibbs")[1]
        h_best = best(r["rows"], "SGRLD")[0]
        lowest = np.nanmin([value for row in r["rows"] for value in row["curve"]])
        limits = 0.95 * np.fmin(lowest, gibbs), 1.9 * lowest
        for axis, h in zip(line, STEPS, strict=True):
            for method, style in {
                "MSGNHT_S": "C0-", "MSGNHT_E": "C0--", "SGHMC_S": "C1-", "SGHMC_E": "C1--",
                "SGNHT": "C2:",
            }.items():  # fmt: skip
                plot_curve(axis, seen, r["rows"], method, h, style, method)
            if h_best is not None:
                label = "SGRLD at its best"
                plot_curve(axis, seen, r["rows"], "SGRLD", h_best, "C3:", label)
            if np.isfinite(gibbs):
                axis.axhline(gibbs, color="0.6", label="batch Gibbs, mean prediction")
            axis.set_title(f"{r['corpus']}, batches of {r['batch_size']}, h = {h:g}", fontsize=9)
            axis.set_ylim(*limits)
            axis.set_xlabel("documents seen")
        line[0].set_ylabel("perplexity of a draw")
    handles = {
        label: handle
        for axis in axes.flat
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="upper center", ncols=4, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.5 / (3 * len(records))))
    out.save(figure)


if __name__ == "__main__":
    options = arguments(
        __doc__,
        corpus=("kos", "kos, nips or reuters"),
        batch_size=(5, "documents per batch"),
        updates=(3000, "updates per run"),
        evaluations=(10, "perplexities per run"),
        sweeps=(300, "sweeps of batch Gibbs"),
        seeds=(2, "runs per setting"),
        methods=("", "only these, with commas between them"),
        report=(False, "write table and figure of the runs so far"),
    )
    if options.quick:
        FOLDER = RESULTS / "quick" / "lda"
        options.updates, options.evaluations, options.sweeps, options.seeds = 60, 3, 6, 1
    pytensor.config.floatX = "float32"
    if options.report:
        report(options)
    else:
        run(options)
