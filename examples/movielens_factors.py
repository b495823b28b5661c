"""Bayesian matrix factorisation of MovieLens-1M: SGNHT against SGHMC (SGNHT paper, section 5.2).

Paper: 10 factors, batches of 400 ratings, 100,000 updates, the first 20,000 burn-in, a in {0.01,
0.1}, eta in {2, 4, 6, 8} e-7, chosen by validation; mean and sd over splits into 80% and 20%:
SGHMC 0.8582 (0.0004), SGNHT 0.8572 (0.0003) test RMSE.

Model, as in Chen et al. (2014): rating = mean + U[user] . V[movie] + a[user] + b[movie] + noise,
each of U, V, a, b normal with a precision ~ Gamma(1, 1) that is sampled too; the noise's sd is
fixed (--noise). A tenth of the training ratings is for validation.

    python examples/movielens_factors.py
    python examples/movielens_factors.py --updates 10000 --splits 1     # smaller; the table says so

GroupLens does not allow the ratings to be passed on: datasets.py says where they are looked for. A
killed script goes on when it is started again with the same arguments; --fresh begins anew.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor
from common import E, Report, S, arguments
from datasets import load_movielens
from networks import JAX, Rows, kinetic_temperature, run
from pymc.exceptions import SamplingError

import pymc_sgmcmc as sgm

BATCH, THIN = 400, 100
PAPER = {"SGHMC": "0.8582 +- 0.0004", "SGNHT": "0.8572 +- 0.0003"}


def factorisation(user, movie, rating, n_users: int, n_movies: int, factors: int, noise: float):
    """The model of the module docstring."""
    with pm.Model() as model:
        sds = {k: pm.Gamma(f"precision_{k}", 1, 1) ** -0.5 for k in "UVab"}
        U = pm.Normal("U", 0, sds["U"], shape=(n_users, factors))
        V = pm.Normal("V", 0, sds["V"], shape=(n_movies, factors))
        a = pm.Normal("a", 0, sds["a"], shape=n_users)
        b = pm.Normal("b", 0, sds["b"], shape=n_movies)
        i, j = pm.Data("user", user), pm.Data("movie", movie)
        mean = float(rating.mean()) + (U[i] * V[j]).sum(axis=1) + a[i] + b[j]
        pm.Normal("rating", mean, noise, observed=rating.astype(pytensor.config.floatX))
    return model


def main():
    """Run the grid on each split and make the table."""
    args = arguments(
        __doc__,
        updates=(100_000, "updates per chain, a fifth of them burn-in"),
        splits=(5, "random splits into training and test ratings"),
        noise=(0.85, "sd of a rating about its mean"),
        factors=(10, "factors of each user and movie"),
        fresh=(False, "do not go on with an earlier run"),
    )
    grid = [(a, 1e-7 * k) for a in (0.01, 0.1) for k in (2, 4, 6, 8)]
    thin = THIN
    if args.quick:
        args.updates, args.splits, args.factors, grid, thin = 100, 1, 2, grid[:1], 10
    pytensor.config.floatX = "float32"
    user, movie, rating = load_movielens()
    n_users, n_movies = int(user.max()) + 1, int(movie.max()) + 1
    report = Report("movielens_factors", args.quick)
    settings = {n: getattr(args, n) for n in ("updates", "noise", "factors", "seed")}
    rows = Rows(report.folder / "movielens_factors.json", settings, args.fresh or args.quick)

    def sampled(split: int, sampler: str, a: float, eta: float) -> dict:
        order = np.random.default_rng(split).permutation(len(rating))
        n_test = len(order) // 5
        test, rest = order[:n_test], order[n_test:]
        valid, train = rest[: len(rest) // 10], rest[len(rest) // 10 :]
        model = factorisation(
            user[train], movie[train], rating[train], n_users, n_movies, args.factors, args.noise
        )
        options = {"batch_size": BATCH, "thin": thin, "compile_kwargs": JAX}
        # a thermostat takes noise that cancels over an epoch for noise that does not
        options["replacement"] = True
        options["local"] = None  # as in the paper, all factors move at every update
        with model:
            if sampler == "SGNHT":
                step = sgm.SGNHT.from_learning_rate(eta=eta, a=a, **options)
            else:
                step = sgm.SGHMC_E.from_momentum_decay(
                    learning_rate=eta, momentum_decay=a, **options
                )
            both = [
                sgm.Predictions(
                    "rating", {"user": user[part], "movie": movie[part]},
                    rating[part].astype(float), name=name, batch_size=50_000,
                )
                for name, part in (("validation", valid), ("test", test))
            ]  # fmt: skip
        rng = np.random.default_rng(args.seed)
        start = {
            name: (0.1 * rng.normal(size=model[name].type.shape)).astype("float32")
            for name in "UVab"
        }
        draws = args.updates // thin
        label = (
            f"movielens_{args.updates}_{args.factors}_{args.noise}_{split}_{sampler}_{a}_{eta:.0e}"
        )
        try:
            tree = run(
                label, model, step, both, draws=draws - draws // 5, tune=draws // 5,
                seed=args.seed, start=start, fresh=args.fresh or args.quick,
            )  # fmt: skip
        except SamplingError as error:
            return {"failed": str(error)[:300]}
        return {
            "valid": float(tree["validation"]["rmse"]),
            "rmse": float(tree["test"]["rmse"]),
            "last": float(tree["test"]["draw_rmse"][0, -1]),
            "T": kinetic_temperature(tree),
        }

    table, means = [], {}
    for a, eta in grid:
        for sampler in ("SGHMC", "SGNHT"):
            found = []
            for split in range(args.splits):
                key = f"split {split} {sampler} a={a} eta={eta:.0e}"
                found.append(rows.get(key, lambda c=(split, sampler, a, eta): sampled(*c)))
            good = [row for row in found if "failed" not in row]
            if not good:
                table.append([sampler, a, f"{eta:.0e}", "failed", "failed", "", ""])
                continue
            rmse = [row["rmse"] for row in good]
            valid = float(np.mean([row["valid"] for row in good]))
            spread = f" +- {np.std(rmse):.4f}" if len(rmse) > 1 else ""
            shown = f"{np.mean(rmse):.4f}{spread}"
            means[sampler, a, eta] = valid, float(np.mean(rmse)), shown
            last = np.mean([row["last"] for row in good])
            T = np.mean([row["T"] for row in good])
            table.append(
                [sampler, a, f"{eta:.0e}", f"{valid:.4f}", shown, f"{last:.4f}", f"{T:.2f}"]
            )
    report.print(
        f"{args.updates} updates, random splits: {args.splits}; RMSE; T: kinetic temperature.\n"
    )
    report.table(["sampler", "a", "eta", "validation", "test", "last draw", "T"], table)
    report.print()
    best = []
    for sampler, paper in PAPER.items():
        own = {k: v for k, v in means.items() if k[0] == sampler}
        if own:
            (_, a, eta), (*_, shown) = min(own.items(), key=lambda item: item[1][0])
            best.append([sampler, paper, shown, a, f"{eta:.0e}"])
    report.table(["chosen by validation", "paper", "here", "a", "eta"], best)
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    for ax, a in zip(axes, (0.01, 0.1), strict=True):
        for sampler, colour in (("SGHMC", E), ("SGNHT", S)):
            points = [(k[2], v[1]) for k, v in means.items() if k[:2] == (sampler, a)]
            if points:
                ax.plot(*zip(*points, strict=True), "o-", color=colour, label=sampler)
        ax.set(xlabel="eta", title=f"a = {a}")
    axes[0].set_ylabel("test RMSE")
    axes[0].legend(loc="upper left")
    fig.tight_layout()
    report.save(fig)


if __name__ == "__main__":
    main()
