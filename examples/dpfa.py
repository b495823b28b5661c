r"""Deep Poisson factor analysis: topics switched on by a deep sigmoid belief network.

High-order paper, section 5.2 and supplement G (Gan et al. 2015). Counts of words are Poisson,
x ~ Pois(topics' (psi * h1)), psi gamma, and h1 the lowest layer of a network of 128-64-32 binary
units. One step moves all global variables on one gradient: SGRLD the topics, MSGNHT_S the
network's weights and the gamma's shapes; each document's psi and units are drawn by Gibbs
sampling inside the update (`topic_gibbs.py`).

    python examples/dpfa.py --layers 128-64-32        # one model, on 20 Newsgroups
    python examples/dpfa.py --corpus nips --stream    # counts that stay on disk
    python examples/dpfa.py --lda                     # LDA on the same split, by batch Gibbs
    python examples/dpfa.py --report                  # table and figure of all runs so far

Perplexity: of test documents 80% of the words are seen, and the others predicted, by the mean of
the predictions of the draws of the last half of a run.
"""

import json
import sys
import tempfile
import time

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from common import RESULTS, Report, arguments
from datasets import load_20_newsgroups, load_documents, load_vocabulary
from token_gibbs import BatchGibbs, Corpus, Perplexity
from topic_gibbs import TopicGibbs, network, predict_words

import pymc_sgmcmc as sgm
from pymc_sgmcmc.samplers.sgrld import unconstrained

ETA = 0.05
"""Of the topics' Dirichlet prior."""
BETA = 1.0
"""Rate of psi, (1 - p) / p with p = 1/2."""
DIFFUSION = 100.0
"""Of the network; about the friction that the batches' noise asks for (the paper has 40)."""
THIN = 4
"""Updates per compiled call."""
SHARE = 0.8
SWEEPS = (20, 10)
"""Burn-in and draws for a test document."""
FOLDER = RESULTS / "dpfa"


def deep_poisson_factor_analysis(x, layers) -> pm.Model:
    """Model of counts, shape (documents, words), with layers of units, the lowest first."""
    coords = {"document": np.arange(len(x)), "word": np.arange(x.shape[1])}
    coords |= {f"unit{k}": np.arange(n) for k, n in enumerate(layers, 1)}
    with pm.Model(coords=coords) as model:
        counts = pm.Data("counts", x, dims=("document", "word"))
        topics = pm.Dirichlet("topics", np.full(x.shape[1], ETA), dims=("unit1", "word"))
        log_odds = 0.0
        for k in range(len(layers), 0, -1):
            log_odds = log_odds + pm.Normal(f"c{k}", 0, 1, dims=f"unit{k}")
            h = pm.Bernoulli(f"h{k}", logit_p=log_odds, dims=("document", f"unit{k}"))
            if k > 1:
                log_odds = h @ pm.Normal(f"w{k - 1}", 0, 1, dims=(f"unit{k}", f"unit{k - 1}"))
        gamma0 = pm.Gamma("gamma0", 1, 1)
        r = pm.Gamma("r", gamma0, 1, dims="unit1")
        psi = pm.Gamma("psi", r, BETA, dims=("document", "unit1"))
        pm.Poisson("words", (psi * h) @ topics, observed=counts, dims=("document", "word"))
    return model


def start_point(model: pm.Model, seed: int) -> dict[str, np.ndarray]:
    """Nearly uniform topics, small weights, PyMC's initial values for the rest."""
    rng = np.random.default_rng(seed)
    point = model.initial_point()
    for name, value in point.items():
        if name == "topics_simplex__":
            topics = rng.uniform(size=(value.shape[0], value.shape[1] + 1))
            point[name] = unconstrained(pt.as_tensor(topics)).eval().astype(value.dtype)
        elif name.startswith("w"):
            point[name] = (0.1 * rng.normal(size=value.shape)).astype(value.dtype)
    return point


def parameters(point: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A point's values on the scale of the model, in double precision."""
    values = {name: np.asarray(value, dtype=float) for name, value in point.items()}
    y = values.pop("topics_simplex__")
    y = np.concatenate([y, -y.sum(axis=1, keepdims=True)], axis=1)
    topics = np.exp(y - y.max(axis=1, keepdims=True))
    values["topics"] = topics / topics.sum(axis=1, keepdims=True)
    values["r"] = np.exp(values.pop("r_log__"))
    values["gamma0"] = np.exp(values.pop("gamma0_log__"))
    return values


class DeepPerplexity(Perplexity):
    """Perplexity of words predicted by the deep model."""

    def __init__(self, test: Corpus, rng: np.random.Generator, layers, sweeps=SWEEPS):
        super().__init__(test, rng, alpha=np.nan, sweeps=sweeps, share=SHARE)
        self.layers = np.array(layers)

    def add(self, values: dict[str, np.ndarray]) -> tuple[float, float]:
        """Perplexity of one draw of the parameters, and of the mean of all since `forget`."""
        seen, unseen = self.seen, self.unseen
        probability = predict_words(
            self._n, seen.word, seen.count, seen.first, unseen.word, unseen.first,
            values["topics"], *network(values, len(self.layers)), self.layers, BETA, *self.sweeps,
        )  # fmt: skip
        self._sum += probability
        self._n += 1
        return self.of(probability), self.of(self._sum / self._n)


def make_step(model: pm.Model, layers, options, **kwargs):
    """One step of three groups: topics, network, and the gamma's shapes, whose noise is larger."""
    by_name = {rv.name: rv for rv in model.free_RVs}
    units = [rv for name, rv in by_name.items() if name[0] in "cw"]
    decay = sgm.PolynomialDecay(options.topic_step, b=100, c=0.5)
    return sgm.Groups(
        [
            sgm.SGRLD.on([by_name["topics"]], step_size=decay),
            sgm.MSGNHT_S.on(units, step_size=options.step_size, diffusion=DIFFUSION),
            sgm.MSGNHT_S.on(
                [by_name["r"], by_name["gamma0"]],
                step_size=options.step_size / 20,
                diffusion=3 * DIFFUSION,
            ),
        ],
        batch_size=options.batch_size,
        replacement=False,
        latents=TopicGibbs(layers, BETA, n_samples=options.samples, burn_in=options.burn_in),
        model=model,
        **kwargs,
    )


def counts_of(corpus: Corpus) -> np.ndarray:
    """Counts, shape (documents, words)."""
    x = np.zeros((corpus.n_documents, corpus.n_words), dtype=np.int16)
    document = np.repeat(np.arange(corpus.n_documents), np.diff(corpus.first))
    x[document, corpus.word] = corpus.count
    return x


def corpora(options) -> tuple[Corpus, Corpus]:
    """Documents to learn from, and to be tested on."""
    if options.corpus == "nips":
        documents, n_words = load_documents("nips")  # the last 150 are for tests
        return Corpus.of(documents[:-150], n_words), Corpus.of(documents[-150:], n_words)
    train, test, words = load_20_newsgroups()
    keep = np.random.default_rng(0).permutation(len(test))[: options.test]
    if options.quick:
        train = train[:300]
    return (
        Corpus.of(train, len(words)),
        Corpus.of([test[d] for d in keep if test[d][1].sum() > 1], len(words)),
    )


def save(run: dict) -> None:
    """Write a run's record."""
    shown = {k: v for k, v in run.items() if k not in ("curve", "words")}
    print(json.dumps(shown), flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{run['name']}.json").write_text(json.dumps(run, indent=1) + "\n")


def new_run(name: str, train: Corpus, perplexity: Perplexity, **settings) -> dict:
    """Begin a run's record."""
    return {
        "name": name,
        "command": " ".join(["python", "examples/dpfa.py", *sys.argv[1:]]),
        "train": [train.n_documents, train.n_tokens],
        "test": [perplexity.unseen.n_documents, perplexity.unseen.n_tokens],
        "curve": [],
        **settings,
    }


def run_deep(options) -> None:
    """One model, trained until the time is up."""
    layers = tuple(int(n) for n in options.layers.split("-"))
    train, test = corpora(options)
    perplexity = DeepPerplexity(test, np.random.default_rng(1), layers)
    counts, data = counts_of(train), None
    if options.stream:
        folder = tempfile.TemporaryDirectory()
        np.save(f"{folder.name}/counts.npy", counts)
        data = sgm.StreamedData({"counts": np.load(f"{folder.name}/counts.npy", mmap_mode="r")})
        counts = data.head()["counts"]
    model = deep_poisson_factor_analysis(counts, layers)
    began = time.perf_counter()
    jax = {"mode": "JAX"}
    step = make_step(model, layers, options, thin=THIN, data=data, compile_kwargs=jax)
    print(f"compiled in {time.perf_counter() - began:.0f} s", flush=True)
    name = prefix(options) + f"dpfa_{options.layers}"
    run = new_run(name, train, perplexity, batch_size=options.batch_size)
    point = start_point(step.model, options.seed)
    step.setup_chain(np.random.default_rng(options.seed), tune=0, draws=0)
    limit, half_way = 60 * options.minutes, False
    began = time.perf_counter()
    while time.perf_counter() - began < limit:
        for _ in range(options.every // THIN):
            point, [stats] = step.step(point)
            if stats["nonfinite"]:
                raise RuntimeError(stats["warning"].message)
        values = parameters(point)
        seconds = time.perf_counter() - began
        if not half_way and seconds > limit / 2:
            half_way = True
            perplexity.forget()
        single, mean = perplexity.add(values)
        run["curve"].append([stats["n_updates"], seconds, single, mean])
        run |= {
            "updates": stats["n_updates"],
            "perplexity": mean,
            "s": round(seconds),
            "temperature": [v for n, v in stats.items() if n.endswith("kinetic_temperature")],
            "r": [values["r"].min(), values["r"].mean(), values["r"].max()],
            "words": top_words(values, vocabulary(options)),
        }  # fmt: skip
        save(run)


def run_lda(options) -> None:
    """LDA with as many topics, by collapsed Gibbs sampling of all documents."""
    train, test = corpora(options)
    n_topics = int(options.layers.split("-")[0])
    perplexity = Perplexity(test, np.random.default_rng(1), options.alpha, SWEEPS, SHARE)
    run = new_run(prefix(options) + f"lda_{n_topics}", train, perplexity, alpha=options.alpha)
    began = time.perf_counter()
    gibbs = BatchGibbs(train, n_topics, options.alpha, ETA, options.seed)
    for k in range(options.sweeps):
        gibbs.sweep()
        if k == options.sweeps // 2:
            perplexity.forget()
        if k % 10 == 9:
            single, mean = perplexity.add(gibbs.pi)
            seconds = time.perf_counter() - began
            run["curve"].append([k + 1, seconds, single, mean])
            run |= {"updates": k + 1, "perplexity": mean, "s": round(seconds)}
            save(run)


def prefix(options) -> str:
    """Prefix of the names of a corpus's runs."""
    return "" if options.corpus == "20news" else f"{options.corpus}_"


def vocabulary(options) -> list[str]:
    """The corpus's words."""
    return load_20_newsgroups()[2] if options.corpus == "20news" else load_vocabulary("nips")


def top_words(values: dict[str, np.ndarray], vocabulary: list[str]) -> list[str]:
    """Most probable words of the topics that the corpus uses most."""
    order = np.argsort(-values["r"] / (1 + np.exp(-values["c1"])))[:12]
    return [" ".join(vocabulary[v] for v in np.argsort(-values["topics"][k])[:8]) for k in order]


def passes(r: dict) -> np.ndarray:
    """Passes over the training documents at each evaluation of a run."""
    updates = np.array(r["curve"])[:, 0]
    return updates * r.get("batch_size", r["train"][0]) / r["train"][0]


def report(options) -> None:
    """Table and figure of all runs."""
    out = Report("dpfa", options.quick)
    records = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    common = {r["train"][1]: [] for r in records}
    for r in records:
        common[r["train"][1]].append(passes(r)[[0, -1]])
    out.print("Perplexity of held-out words: 80% of the words of a test document are seen, the")
    out.print("others predicted, by the mean of the draws of the last half of a run; by its last")
    out.print("draw; and by a draw about where the shortest run of the corpus ended.\n")
    table = []
    for r in records:
        firsts, lasts = np.transpose(common[r["train"][1]])
        at = max(lasts.min(), firsts.max())
        k = np.flatnonzero(passes(r) <= at + 1e-9)[-1]
        single = [row[2] for row in r["curve"]]
        table.append([
            r["name"], f"{r['perplexity']:.1f}", f"{single[-1]:.1f}",
            f"{single[k]:.1f} ({passes(r)[k]:.1f})", r["updates"], f"{passes(r)[-1]:.1f}", r["s"],
        ])  # fmt: skip
    header = ["model", "perplexity", "last draw", "draw (passes)", "updates", "passes", "s"]
    out.table(header, table)
    out.print("\nUpdates of LDA are sweeps of batch Gibbs sampling over all documents. The paper's")
    out.print(
        "Figure 5 is of 10 million documents of Wikipedia: its perplexities compare with none"
    )
    out.print("of these.")
    figure, axes = plt.subplots(1, len(common), figsize=(4.5 * len(common), 3.5), squeeze=False)
    panels = dict(zip(common, axes[0], strict=True))
    for r in records:
        out.print(f"\n{r['name']}: {r['command']}")
        out.print(
            f"{r['train'][0]} documents ({r['train'][1]} tokens) train; {r['test'][0]} test, "
            f"{r['test'][1]} of their tokens held out"
        )
        panels[r["train"][1]].plot(passes(r), [row[2] for row in r["curve"]], ".-", label=r["name"])
        if "temperature" in r:
            weights, shapes = r["temperature"]
            low, mean, high = r["r"]
            out.print(f"temperature {weights:.2f} (network), {shapes:.2f} (r and gamma0)")
            out.print(f"r from {low:.2f} to {high:.2f}, mean {mean:.2f}; most used topics:")
            for words in r["words"]:
                out.print(f"    {words}")
    for axis in axes[0]:
        axis.set(xscale="log", xlabel="passes over the documents", ylabel="perplexity of a draw")
        axis.legend()
    figure.tight_layout()
    out.save(figure)


def main() -> None:
    global FOLDER
    options = arguments(
        __doc__.splitlines()[0],
        corpus=("20news", "20news or nips"),
        stream=(False, "read the counts from a file, batch by batch"),
        layers=("128-64-32", "units of each layer, the lowest first"),
        minutes=(8.0, "of a run"),
        every=(200, "updates between evaluations"),
        batch_size=(100, "documents per batch"),
        samples=(2, "draws of the local variables for each gradient"),
        burn_in=(10, "sweeps before them"),
        topic_step=(0.05, "first step size of SGRLD, times 10"),
        step_size=(2e-4, "of MSGNHT_S for the network"),
        test=(2000, "test documents"),
        lda=(False, "LDA instead"),
        alpha=(0.1, "of LDA's Dirichlet prior"),
        sweeps=(200, "of LDA's batch Gibbs sampling"),
        report=(False, "write table and figure of the runs so far"),
    )
    if options.quick:
        FOLDER = RESULTS / "quick" / "dpfa"
        options.minutes, options.every, options.sweeps, options.test = 0.2, 20, 20, 50
    if options.report:
        report(options)
    elif options.lda:
        run_lda(options)
    else:
        run_deep(options)


if __name__ == "__main__":
    main()
