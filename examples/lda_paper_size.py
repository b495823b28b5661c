r"""Topics of a corpus of the papers' size, all samplers under the same priors.

High-order paper, Table 1 and Figure 3, and SGNHT paper, section 5.2. Their corpus of ICML abstracts
(765 documents, 1918 words, 44,140 tokens) is not available: here KOS is cut to as many documents
and words. `lda.py` has whole corpora, longer runs and larger steps.

    python examples/lda_paper_size.py --part high-order   # 1000 updates, batches of 5
    python examples/lda_paper_size.py --part sgnht        # a, eta and batches of 100 of that paper
    python examples/lda_paper_size.py --part reference    # runs on all documents at once
    python examples/lda_paper_size.py --report            # table and figure of all of them

From the papers: 612 documents to learn from and 153 for tests, 30 topics, alpha = 0.1, N(0.1, 1)
for theta with topics softmax(theta); batches of 5, D = 0.75, h in {1e-2, 2.5e-3, 5e-4}, 1000
updates; or batches of 100, a in {0.01, 0.1}, eta in {2, 4, 6, 8} 1e-5. From us: the corpus, the
Dirichlet prior of 0.1, SGRLD's step sizes, the start, five sweeps of burn-in and five kept ones for
the tokens of a batch, document completion for the perplexity, fewer updates in the second part.

Gibbs and SGRLD sample under the Dirichlet prior, the others under the papers' normal prior, which
prefers topics of many words; so here the others are run under the Dirichlet prior too.
"""

import json
import sys
import time

import matplotlib.pyplot as plt
import numpy as np
import pytensor
from common import RESULTS, Report, arguments, with_step_size
from datasets import load_documents
from lda import (
    ALPHA,
    BETA,
    DIFFUSION,
    METHODS,
    N_TOPICS,
    PAPER,
    SGRLD_STEPS,
    start_point,
    topic_model,
    topics,
)
from token_gibbs import BatchGibbs, Corpus, Perplexity

import pymc_sgmcmc as sgm

N_DOCUMENTS, N_WORDS = 765, 1918
STEPS = [5e-4, 2.5e-3, 1e-2]
ETAS = [2e-5, 4e-5, 6e-5, 8e-5]
PRIORS = {"normal": "normal", "Dirichlet": "gamma"}
"""Prior and the form of the model in which all but SGRLD sample it."""
FOLDER = RESULTS / "lda_paper_size"


def cut_corpus() -> tuple[Corpus, Corpus]:
    """KOS, 765 of its documents and their 1918 most frequent words: for training and tests."""
    documents, n_words = load_documents("kos")
    rng = np.random.default_rng(0)
    chosen = [documents[d] for d in rng.permutation(len(documents))[:N_DOCUMENTS]]
    frequency = np.zeros(n_words)
    for words, counts in chosen:
        frequency[words] += counts
    number = np.full(n_words, -1)
    number[np.argsort(-frequency, kind="stable")[:N_WORDS]] = np.arange(N_WORDS)
    kept = [(number[w][number[w] >= 0], c[number[w] >= 0]) for w, c in chosen]
    n_test = N_DOCUMENTS // 5
    return Corpus.of(kept[n_test:], N_WORDS), Corpus.of(kept[:n_test], N_WORDS)


class Record:
    """Rows of a part, in its file after each of them."""

    def __init__(self, part: str, train: Corpus, test: Corpus, options):
        self.path = FOLDER / f"{part}.json"
        self.content = {
            "command": " ".join(["python", "examples/lda_paper_size.py", *sys.argv[1:]]),
            "train": [train.n_documents, train.n_tokens],
            "test": [test.n_documents, test.n_tokens],
            "updates": options.updates,
            "seeds": options.seeds,
            "rows": [],
        }

    def add(self, **row) -> None:
        self.content["rows"].append(row)
        print(json.dumps({k: v for k, v in row.items() if k != "curve"}), flush=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.content) + "\n")


def run_chain(step, start, perplexity, seed: int, every: int, n: int, burn_in: int) -> dict:
    """Perplexity of ``n`` draws ``every`` updates apart, and of the mean of those after some."""
    perplexity.forget()
    step.thin = every
    step.setup_chain(np.random.default_rng(seed), tune=0, draws=n)
    point, curve, mean = start, [], np.nan
    began = time.perf_counter()
    for k in range(n):
        point, [stats] = step.step(point)
        if stats["nonfinite"]:
            return {"curve": [*curve, *[np.nan] * (n - k)], "average": np.nan}
        if k == burn_in:
            perplexity.forget()
        single, mean = perplexity.add(topics(point))
        curve.append(single)
    return {
        "curve": curve,
        "average": mean,
        "temperature": stats.get("kinetic_temperature", np.nan),
        "s": round(time.perf_counter() - began, 1),
    }


def make_step(sampler, train: Corpus, form: str, batch_size: int | None, **settings):
    """One compiled step; its step size is set for each run."""
    minibatch = {"batch_size": batch_size, "replacement": True} if batch_size else {}
    return sampler(
        model=topic_model(train, form),
        thin=1,
        compile_kwargs={"mode": "NUMBA"},
        **minibatch,
        **settings,
    )


def high_order(train, perplexity, record, options) -> None:
    """The high-order paper's samplers and step sizes."""
    for method, (sampler, settings, _) in METHODS.items():
        for prior, form in PRIORS.items():
            steps = STEPS
            if sampler is sgm.SGRLD:
                form, steps = "simplex", SGRLD_STEPS
                if prior == "normal":
                    continue
            step = make_step(sampler, train, form, 5, step_size=steps[0], **settings)
            for h in steps:
                with_step_size(step, h)
                for seed in range(options.seeds):
                    start = start_point(step.model, N_WORDS, seed)
                    every = options.updates // 20
                    found = run_chain(step, start, perplexity, seed, every, 20, 10)
                    record.add(method=method, prior=prior, setting=f"{h:g}", seed=seed, **found)


def sgnht(train, perplexity, record, options) -> None:
    """The SGNHT paper's samplers, a and eta, under its prior."""
    for a in (0.01, 0.1):
        for method in ("SGHMC", "SGNHT"):
            for eta in ETAS:
                h = np.sqrt(eta)
                sampler, noise = (
                    (sgm.SGNHT, {"diffusion": a / h})
                    if method == "SGNHT"
                    else (sgm.SGHMC_E, {"friction": a / h})
                )
                step = make_step(sampler, train, "normal", 100, step_size=h, **noise)
                start = start_point(step.model, N_WORDS, 0)
                found = run_chain(step, start, perplexity, 0, options.updates // 20, 20, 4)
                record.add(
                    method=method, prior="normal", setting=f"a={a:g} eta={eta:g}", seed=0, **found
                )


def reference(train, perplexity, record, options) -> None:
    """Batch Gibbs, and MSGNHT_S with the gradient of all documents, run long."""
    for seed in range(options.seeds):
        gibbs = BatchGibbs(train, N_TOPICS, ALPHA, BETA, seed)
        rng = np.random.default_rng(seed)
        began = time.perf_counter()
        kinds = {"Gibbs, topics drawn": [], "Gibbs, mean topics": []}
        for _ in range(20):
            for _ in range(options.sweeps // 20):
                gibbs.sweep()
            kinds["Gibbs, topics drawn"].append(gibbs.draw_pi(rng))
            kinds["Gibbs, mean topics"].append(gibbs.pi)
        seconds = round(time.perf_counter() - began, 1)
        for method, drawn in kinds.items():
            perplexity.forget()
            curve = []
            for k, pi in enumerate(drawn):
                if k == 10:
                    perplexity.forget()
                single, mean = perplexity.add(pi)
                curve.append(single)
            record.add(
                method=method, prior="Dirichlet", setting=f"{options.sweeps} sweeps", seed=seed,
                curve=curve, average=mean, s=seconds,
            )  # fmt: skip
    h, updates = 0.03, options.full_updates
    for prior, form in PRIORS.items():
        step = make_step(sgm.MSGNHT_S, train, form, None, step_size=h, diffusion=DIFFUSION)
        start = start_point(step.model, N_WORDS, 0)
        found = run_chain(step, start, perplexity, 0, updates // 20, 20, 10)
        record.add(
            method="MSGNHT_S, all documents", prior=prior, setting=f"{h:g}, {updates} updates",
            seed=0, **found,
        )  # fmt: skip


def spread(values: list[float]) -> str:
    """Mean and half the range, over seeds; those that diverged are counted apart."""
    finite = np.array(values)[np.isfinite(values)]
    text = f"{finite.mean():.0f}" if finite.size else ""
    if finite.size > 1:
        text += f" +- {np.ptp(finite) / 2:.0f}"
    if finite.size < len(values):
        diverged = f"{len(values) - finite.size} of {len(values)} diverged"
        text = f"{text}, {diverged}" if text else diverged
    return text


def grouped(rows: list[dict]) -> dict[tuple, list[dict]]:
    """Rows by method, prior and setting."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["prior"], row["setting"]), []).append(row)
    return groups


def best(groups: dict[tuple, list[dict]], method: str, prior: str) -> str:
    """The setting of the lowest mean perplexity of the last draw; '' if there is none."""
    found = {
        setting: np.mean([r["curve"][-1] for r in rows])
        for (m, p, setting), rows in groups.items()
        if (m, p) == (method, prior)
    }
    finite = {setting: value for setting, value in found.items() if np.isfinite(value)}
    return min(finite, key=finite.get) if finite else ""


def cells(rows: list[dict]) -> list[str]:
    """Last draw, average, and temperature."""
    known = [r["temperature"] for r in rows if np.isfinite(r.get("temperature", np.nan))]
    temperature = np.mean(known) if known else np.nan
    return [
        spread([r["curve"][-1] for r in rows]),
        spread([r["average"] for r in rows]),
        "" if np.isnan(temperature) else f"{temperature:.2f}",
    ]


def report(options) -> None:
    """Tables of all parts, and learning curves."""
    out = Report("lda_paper_size", options.quick)
    parts = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
    header = ["last draw", "average", "temperature"]
    out.print("Held-out perplexity of the last draw, and of the average prediction of the draws")
    out.print("after the burn-in; mean over seeds +- half their range.")
    if "high-order" in parts:
        part = parts["high-order"]
        groups = grouped(part["rows"])
        out.print(f"\n{part['command']}")
        out.print(
            f"{part['train'][0]} documents ({part['train'][1]} tokens) train, {part['test'][0]} "
            f"test; batches of 5, {part['updates']} updates, {part['seeds']} seeds; the average is "
            "of 10 draws of the second half. Best: by the last draw.\n"
        )
        table = []
        for method in METHODS:
            line = [method, PAPER.get(method, "")]
            for prior in PRIORS:
                h = best(groups, method, prior)
                rows = groups.get((method, prior, h), [])
                line += [*cells(rows)[:2], h] if rows else ["", "", ""]
            table.append(line)
        columns = [f"{prior}: {what}" for prior in PRIORS for what in ("draw", "average", "h")]
        out.table(["best of each", "ICML (paper)", *columns], table)
        out.print()
        out.table(
            ["method", "prior", "step size", *header],
            [[*key, *cells(rows)] for key, rows in groups.items()],
        )
    for name, text in {
        "reference": "Runs on all documents; the average is of 10 draws of the second half.",
        "sgnht": "SGNHT paper's settings, batches of 100, one seed; the average omits a fifth.\n"
        "The paper's results, after 50,000 updates: SGHMC 1125.2, SGNHT 1102.7. Here:",
    }.items():
        if name in parts:
            part = parts[name]
            out.print(f"\n{part['command']}")
            done = f" {part['updates']} updates." if name == "sgnht" else ""
            out.print(f"{text}{done}\n")
            out.table(
                ["method", "prior", "setting", *header],
                [[*key, *cells(rows)] for key, rows in grouped(part["rows"]).items()],
            )
    out.save(figure(parts) if "high-order" in parts else None)


def figure(parts: dict):
    """Learning curves by prior and step size, with the level of runs on all documents."""
    part = parts["high-order"]
    groups = grouped(part["rows"])
    drawn, axes = plt.subplots(
        len(PRIORS), len(STEPS), figsize=(11, 6.4), sharey=True, layout="constrained"
    )
    level = {
        (r["method"], r["prior"]): r["curve"][-1]
        for r in parts.get("reference", {"rows": []})["rows"]
    }
    seen = 5 * part["updates"] / 20 * np.arange(1, 21)
    styles = {
        "MSGNHT_S": "C0-", "MSGNHT_E": "C0--", "SGHMC_S": "C1-", "SGHMC_E": "C1--", "SGNHT": "C2:",
    }  # fmt: skip
    for line, prior in zip(axes, PRIORS, strict=True):
        for axis, h in zip(line, STEPS, strict=True):
            for method, style in styles.items():
                rows = groups.get((method, prior, f"{h:g}"), [])
                if rows:
                    mean = np.mean([r["curve"] for r in rows], axis=0)
                    axis.plot(seen, mean, style, label=method)
            sgrld = best(groups, "SGRLD", prior)
            if sgrld:
                mean = np.mean([r["curve"] for r in groups["SGRLD", prior, sgrld]], axis=0)
                axis.plot(seen, mean, "C3:", label=f"SGRLD, {sgrld}")
            for (method, own), value in level.items():
                if own == prior and method != "Gibbs, mean topics":
                    colour = "k" if "Gibbs" in method else "C4"
                    axis.axhline(value, c=colour, lw=1, ls="--", label=f"{method}, last draw")
            axis.set(title=f"{prior} prior, h = {h:g}", xlabel="documents seen", yscale="log")
    axes[0, 0].set_ylim(600, 4000)
    for line in axes:
        line[0].set_ylabel("perplexity of a draw")
        line[-1].legend(frameon=False, fontsize=7)
    return drawn


def main() -> None:
    global FOLDER
    options = arguments(
        __doc__.splitlines()[0],
        part=("high-order", "high-order, sgnht or reference"),
        updates=(1000, "updates per run"),
        seeds=(5, "runs per setting"),
        sweeps=(2000, "sweeps of batch Gibbs"),
        full_updates=(2000, "updates with the gradient of all documents"),
        report=(False, "write tables and figure of the parts so far"),
    )
    if options.quick:
        FOLDER = RESULTS / "quick" / "lda_paper_size"
        options.updates, options.seeds, options.sweeps, options.full_updates = 60, 1, 20, 20
    pytensor.config.floatX = "float32"
    if options.report:
        report(options)
        return
    train, test = cut_corpus()
    perplexity = Perplexity(test, np.random.default_rng(1), ALPHA)
    record = Record(options.part, train, test, options)
    parts = {"high-order": high_order, "sgnht": sgnht, "reference": reference}
    parts[options.part](train, perplexity, record, options)


if __name__ == "__main__":
    main()
