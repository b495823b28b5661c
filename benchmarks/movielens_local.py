"""Matrix factorisation of MovieLens-1M: users and movies local, or moved at every update.

    python benchmarks/movielens_local.py             # two minutes, on an otherwise idle machine
    python benchmarks/movielens_local.py --quick     # a few seconds; nothing written

The model of examples/movielens_factors.py with 10 factors, 80 percent of the ratings for training,
batches of 400, float32; a few step sizes of each way.
RMSE of the test ratings' posterior mean over the last four fifths of the draws, and of the last
draw; updates per second from the median of the draws' times. Writes
benchmarks/results/movielens_local.txt.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pytensor

pytensor.config.floatX = "float32"
sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

from datasets import load_movielens  # noqa: E402
from movielens_factors import BATCH, factorisation  # noqa: E402

import pymc_sgmcmc as sgm  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "movielens_local.txt"
UPDATES, THIN, FACTORS, NOISE = 100_000, 2000, 10, 0.85


def steps(quick: bool):
    """Name and maker of each step."""

    def local(h):
        return lambda **o: sgm.MSGNHT_S(step_size=h, local=["U", "V", "a", "b"], **o)

    def dense(eta):
        return lambda **o: sgm.SGNHT.from_learning_rate(eta=eta, a=0.01, local=None, **o)

    yield from (
        (f"local, MSGNHT_S, h = {h}", local(h)) for h in ((0.003,) if quick else (0.003, 0.006))
    )
    if not quick:
        yield from ((f"dense, SGNHT, eta = {eta:.0e}", dense(eta)) for eta in (2e-7, 4e-7))


def main(quick: bool) -> None:
    thin, n_draws = (50, 4) if quick else (THIN, UPDATES // THIN)
    user, movie, rating = load_movielens()
    n_users, n_movies = int(user.max()) + 1, int(movie.max()) + 1
    order = np.random.default_rng(0).permutation(len(rating))
    test, train = np.split(order, [len(order) // 5])
    lines = [
        f"python benchmarks/movielens_local.py   ({time.strftime('%Y-%m-%d')})",
        f"{n_users} users, {n_movies} movies, {len(train)} ratings for training",
        f"{n_draws * thin} updates of {BATCH} ratings, {FACTORS} factors",
        f"{'':>28}{'RMSE':>8}{'last draw':>11}{'updates/s':>11}",
    ]
    print(*lines, sep="\n", flush=True)
    model = factorisation(
        user[train], movie[train], rating[train], n_users, n_movies, FACTORS, NOISE
    )
    rng = np.random.default_rng(1)
    start = {k: 0.1 * rng.normal(size=model[k].type.shape).astype("float32") for k in "UVab"}
    for name, make in steps(quick):
        step = make(batch_size=BATCH, thin=thin, replacement=True, model=model)
        step.setup_chain(np.random.default_rng(2), 0, 0)
        point = model.initial_point() | start
        total, count, seconds = np.zeros(len(test)), 0, []
        for k in range(n_draws):
            began = time.perf_counter()
            point, _ = step.step(point)
            seconds.append(time.perf_counter() - began)
            i, j = user[test], movie[test]
            found = (point["U"][i] * point["V"][j]).sum(1) + point["a"][i] + point["b"][j]
            if k >= n_draws // 5:
                total, count = total + found, count + 1
        mean = rating[train].mean()
        rmse, last = (
            float(np.sqrt(np.mean((mean + f - rating[test]) ** 2))) for f in (total / count, found)
        )
        speed = thin / float(np.median(seconds[1:]))
        lines.append(f"{name:>28}{rmse:>8.4f}{last:>11.4f}{speed:>11,.0f}")
        print(lines[-1], flush=True)
        if not quick:
            RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main("--quick" in sys.argv)
