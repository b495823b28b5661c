"""A store's customers: are 90% intervals of their effects right, and what do they cost?

    python benchmarks/customers.py --size small   # 10,000 customers, 200,000 rows: some minutes
    python benchmarks/customers.py --size full    # a million customers, 20 million rows: an hour
    python benchmarks/customers.py --size full --only default   # the other ways as they are

Purchases y ~ Bernoulli(logit = effect[customer] + x beta) with known effects and beta; customers
have 0 to some 150 rows, 20 on average. The rows lie on disk in random order, as NumPy files that a
process of its own writes.

    default  in memory, `sgm.sample()` on the model as one writes it, with nothing chosen
    streamed `sgm.sample(data=)`, from the files
    sorted   the same, from files sorted by customer
    local    in memory, `sgm.sample(integrate=None)`, 2 chains of 150 draws (small only)
    rows     by hand, streamed: MSGNHT_S in `Groups`, the effects local and on a scale of about
             their own sds (which follow from their numbers of rows), batches of 1000 rows (small:
             200), h = 0.025
    groups   the same in memory, with batches of whole customers, h = 0.3
    ADVI     in memory, mean field with `pm.Minibatch`, as many updates as "rows" (full: as many as
             it makes in 10 minutes)

The intervals are the mean +- 1.645 sd of draws: of those of the result, or running ones. For 200
customers they are the quantiles of their draws, where there are some. Intervals that cover may
still be too wide: the error of the means tells. "z" is the error of a shared parameter in its sds.
Peak memory is of the process that samples, PyMC and JAX included, and with the pages of files that
the system keeps for it. Writes benchmarks/results/customers_<size>.txt.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

RESULTS = Path(__file__).parent / "results"
BETA = np.array([0.5, -0.3, 0.2])
MU, TAU = -1.0, 0.7
CLASSES = [(0, 0), (1, 5), (6, 20), (21, 10**9)]


class Size(NamedTuple):
    """Of the store and of the run."""

    customers: int
    rows: int
    batch: int
    draws: int
    """Each half an epoch."""
    ways: tuple[str, ...]


SIZES = {
    "small": Size(
        10_000,
        200_000,
        200,
        600,
        ("default", "streamed", "sorted", "local", "rows", "groups", "ADVI"),
    ),
    "full": Size(
        1_000_000,
        20_000_000,
        1000,
        600,
        ("default", "streamed", "sorted", "rows", "groups", "ADVI"),
    ),
}
ADVI_MINUTES = 10
STEP_SIZES = {"rows": 0.025, "groups": 0.3}
"""Of the effects, on their own scale."""


def write_store(folder: Path, size: Size) -> None:
    """Write the rows in pieces, and the customers' true effects."""
    rng = np.random.default_rng(0)
    activity = np.cumsum(rng.gamma(1.5, size=size.customers))
    effect = rng.normal(MU, TAU, size.customers).astype("float32")
    np.save(folder / "effect.npy", effect)
    shapes = {"customer": ("uint32", ()), "x": ("float32", (3,)), "y": ("int8", ())}
    files = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, (size.rows, *shape))
        for name, (dtype, shape) in shapes.items()
    }
    for first in range(0, size.rows, 1_000_000):
        rows = slice(first, min(first + 1_000_000, size.rows))
        n = rows.stop - rows.start
        customer = np.searchsorted(activity, rng.uniform(0, activity[-1], n))
        x = rng.normal(size=(n, 3)).astype("float32")
        logit = effect[customer] + x @ BETA
        y = rng.random(n) < 1 / (1 + np.exp(-logit))
        for name, values in {"customer": customer, "x": x, "y": y}.items():
            files[name][rows] = values
    order = np.argsort(files["customer"], kind="stable")
    for name, rows in files.items():
        np.save(folder / f"sorted_{name}.npy", rows[order])


def scales(n: np.ndarray) -> np.ndarray:
    """About the posterior sds of the effects of customers with n rows."""
    return (1 / np.sqrt(1 / TAU**2 + 0.2 * n)).astype("float32")


def sampled(rows: dict, n: np.ndarray, size: Size, way: str):
    """Draws of the shared parameters and of some customers, running moments of all."""
    import pymc as pm
    import pytensor

    import pymc_sgmcmc as sgm

    pytensor.config.floatX = "float32"
    streamed = way == "rows"
    data = sgm.StreamedData(rows) if streamed else None
    held = data.head() if streamed else {name: np.array(a) for name, a in rows.items()}
    variance = size.rows**2 / size.batch
    with pm.Model():
        customer = pm.Data("customer", held["customer"], dims="row")
        x = pm.Data("x", held["x"], dims=("row", "column"))
        y = pm.Data("y", held["y"], dims="row")
        scale = pm.Data("scale", scales(n), dims="customers")
        beta = pm.Normal("beta", 0, 1, dims="column", shape=3)
        mu, log_tau = pm.Normal("mu", 0, 2), pm.Normal("log_tau", 0, 1)
        tau = pm.math.exp(log_tau)
        raw = pm.Normal("raw", mu / scale, tau / scale, shape=size.customers)
        pm.Deterministic("some", (scale * raw)[:200])
        logit = (scale * raw)[customer] + x @ beta
        pm.Bernoulli("purchase", logit_p=logit, observed=y, dims="row")

        def group(vars, variance):
            # the noise of a batch's gradient and the diffusion each halve the momentum in some
            # updates
            h = float(np.sqrt(0.1 / variance))
            return sgm.MSGNHT_S.on(vars, step_size=h, diffusion=h * variance / 2)

        step = sgm.Groups(
            [
                group([beta], 0.2 * variance),
                # the effects' prior is spread over their rows, 1 / 20 each on average
                group([mu, log_tau], 0.01 * variance),
                sgm.MSGNHT_S.on([raw], step_size=STEP_SIZES[way]),
            ],
            batch_size=size.batch,
            thin=size.rows // size.batch // 2,
            local=["raw"],
            batches=way,
            replacement=False,
            data=data,
            compile_kwargs={"mode": "JAX"},
        )
        return sgm.sample(
            size.draws, tune=size.draws // 4, chains=1, step=step, random_seed=1,
            var_names=["beta", "mu", "log_tau", "some"], predictions=sgm.Predictions("raw"),
            progressbar=False, quiet=True, compute_convergence_checks=False,
        )  # fmt: skip


def by_default(rows: dict, size: Size, way: str):
    """Draws of the shared parameters; of all customers, or their moments."""
    import pymc as pm

    import pymc_sgmcmc as sgm

    data = None
    with pm.Model(coords={"column": range(3), "customer": range(size.customers)}):
        if way in ("default", "local"):
            customer, x, y = (np.array(rows[name]) for name in ("customer", "x", "y"))
        else:
            data = sgm.StreamedData(rows)
            head = data.head()
            customer = pm.Data("customer_of_row", head["customer_of_row"], dims="row")
            x = pm.Data("x", head["x"], dims=("row", "column"))
            y = pm.Data("y", head["y"], dims="row")
        beta = pm.Normal("beta", 0, 1, dims="column")
        mu, log_tau = pm.Normal("mu", 0, 2), pm.Normal("log_tau", 0, 1)
        effect = pm.Normal("effect", mu, pm.math.exp(log_tau), dims="customer")
        pm.Bernoulli("purchase", logit_p=effect[customer] + x @ beta, observed=y)
        if way == "local":
            pm.Deterministic("some", effect[:200])
            return sgm.sample(
                150, chains=2, random_seed=1, var_names=["beta", "mu", "log_tau", "some"],
                predictions=sgm.Predictions("effect"), progressbar=False, quiet=True,
                integrate=None,
            )  # fmt: skip
        return sgm.sample(data=data, random_seed=1, progressbar=False)


def moments(tree) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of each customer's effect, wherever a result has them."""
    if "effect" in tree["posterior"]:
        draws = tree["posterior"]["effect"]
        return draws.mean(("chain", "draw")).values, draws.std(("chain", "draw")).values
    if "effects" in tree.children:
        return tree["effects"]["effect_mean"].values, tree["effects"]["effect_sd"].values
    return tree["average_effect"]["mean"].values, tree["average_effect"]["sd"].values


def by_advi(rows: dict, size: Size) -> tuple[np.ndarray, np.ndarray, int]:
    """Mean and sd of each effect by mean-field ADVI, and the number of its updates."""
    import pymc as pm

    arrays = rows["customer"], rows["x"], rows["y"].astype("int32")
    customer, x, y = pm.Minibatch(*map(np.array, arrays), batch_size=size.batch)
    with pm.Model(coords={"column": range(3), "customer": range(size.customers)}):
        beta = pm.Normal("beta", 0, 1, dims="column")
        mu, log_tau = pm.Normal("mu", 0, 2), pm.Normal("log_tau", 0, 1)
        effect = pm.Normal("effect", mu, pm.math.exp(log_tau), dims="customer")
        logit = effect[customer] + x @ beta
        pm.Bernoulli("purchase", logit_p=logit, observed=y, total_size=size.rows)
        stop = time.perf_counter() + 60 * ADVI_MINUTES

        def in_time(approximation, losses, i):
            if time.perf_counter() > stop:
                raise StopIteration

        fit = pm.fit(
            size.draws * size.rows // size.batch // 2, method="advi", progressbar=False,
            obj_optimizer=pm.adam(learning_rate=0.01), random_seed=1, callbacks=[in_time],
        )  # fmt: skip
    return fit.mean_data["effect"].values, fit.std_data["effect"].values, len(fit.hist)


def coverage(n: np.ndarray, truth: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    """Of all customers, and by their number of rows."""
    inside = (low < truth) & (truth < high)
    parts = [f"{inside.mean():>8.3f}"]
    for least, most in CLASSES:
        of_class = (n >= least) & (n <= most)
        parts.append(f"{inside[of_class].mean():>8.3f}" if of_class.any() else f"{'-':>8}")
    return "".join(parts)


def run(way: str, folder: Path, size: Size) -> list[str]:
    """Lines of the table about one way."""
    rows = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("customer", "x", "y")}
    truth = np.load(folder / "effect.npy")
    n = np.bincount(rows["customer"], minlength=size.customers)
    began, cpu = time.perf_counter(), time.process_time()
    if way == "ADVI":
        mean, sd, updates = by_advi(rows, size)
    elif way in ("default", "streamed", "sorted", "local"):
        if way in ("streamed", "sorted"):
            before = "sorted_" if way == "sorted" else ""
            names = {"customer_of_row": "customer", "x": "x", "y": "y"}
            rows = {
                name: np.load(folder / f"{before}{file}.npy", mmap_mode="r")
                for name, file in names.items()
            }
        mean, sd = moments(tree := by_default(rows, size, way))
    else:
        tree = sampled(rows, n, size, way)
        average = tree["average_raw"]
        mean, sd = (scales(n) * average[name].values for name in ("mean", "sd"))
    minutes, cpu = (time.perf_counter() - began) / 60, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    half = 1.645 * sd
    lines = [f"{way:>9}{'mean, sd':>17}"]
    lines[0] += coverage(n, truth, mean - half, mean + half)
    lines[0] += f"{minutes:>9.1f}{cpu:>8.0f}{peak:>8.1f}"
    error = np.sqrt(np.mean((mean - truth) ** 2))
    lines.append(f"{'':>26} rms error of the means {error:.3f}, mean sd {sd.mean():.3f}")
    if way == "ADVI":
        passes = updates * size.batch / size.rows
        lines.append(f"{'':>26} {updates} updates, {passes:.2f} passes")
        return lines
    posterior = tree["posterior"]
    if "some" in posterior or "effect" in posterior:
        some = posterior["some" if "some" in posterior else "effect"].values[..., :200]
        low, high = np.quantile(some, [0.05, 0.95], axis=(0, 1))
        lines.append(f"{'draws of 200':>26}{coverage(n[:200], truth[:200], low, high)}")
    shared = {f"beta[{k}]": (b, posterior["beta"].values[:, :, k]) for k, b in enumerate(BETA)}
    shared["mu"] = MU, posterior["mu"].values
    shared["log_tau"] = np.log(TAU), posterior["log_tau"].values
    parts = [f"{name} {(x.mean() - true) / x.std():.1f}" for name, (true, x) in shared.items()]
    lines.append(f"{'z:':>26} " + ", ".join(parts))
    if "diagnosis" in tree.children and "data_passes" in posterior.attrs:
        verdict, passes = tree["diagnosis"].attrs["verdict"], posterior.attrs["data_passes"]
        lines.append(f"{'':>26} verdict {verdict}, {passes:.0f} passes")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--only", help="one way")
    parser.add_argument("--part", nargs=2, help="of this program's own: what to do, and the folder")
    args = parser.parse_args()
    size = SIZES[args.size]
    if args.part:
        what, folder = args.part
        if what == "store":
            write_store(Path(folder), size)
        else:
            print(*run(what, Path(folder), size), sep="\n")
        return
    heads = ["all", *(f"{a}-{b}" if b < 10**9 else f"{a}-" for a, b in CLASSES)]
    lines = [
        f"python benchmarks/customers.py --size {args.size}   ({time.strftime('%Y-%m-%d')})",
        f"{size.customers} customers, {size.rows} rows, batches of {size.batch}, "
        f"{size.draws + size.draws // 4} draws of half an epoch",
        "coverage of 90% intervals, of all customers and by their numbers of rows",
        f"{'':>26}" + "".join(f"{h:>8}" for h in heads) + f"{'minutes':>9}{'CPU s':>8}{'GiB':>8}",
    ]
    results = RESULTS / f"customers_{args.size}.txt"
    if args.only:  # the lines about other ways stay; each begins with its name
        lines = results.read_text().splitlines()
        heads = {line.split()[0]: k for k, line in enumerate(lines) if line.split()[0] in size.ways}
        if args.only in heads:
            first = heads[args.only]
            last = min([k for k in heads.values() if k > first], default=len(lines))
            del lines[first:last]
    print(*lines, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--size", args.size, "--part"]
        subprocess.run([*command, "store", folder], check=True)
        for way in [args.only] if args.only else size.ways:
            part = subprocess.run(
                [*command, way, folder], check=True, stdout=subprocess.PIPE, text=True
            )
            found = [line for line in part.stdout.splitlines() if line.startswith(" ")]
            print(*found, sep="\n", flush=True)
            lines += found
            results.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
