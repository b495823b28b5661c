"""Bias of every sampler: sds on a conjugate posterior, by step size, batch size and batch order.

    python benchmarks/bias_table.py                         # about a quarter of an hour
    python benchmarks/bias_table.py --posteriors PYTHON     # an interpreter with posteriors

Writes benchmarks/results/bias_table.txt. The model is a linear regression of 500 rows with 4
weights, errors with heavy tails and a normal prior: its posterior is normal and known. Samplers
work in coordinates in which the posterior's covariance is the identity and the axes are those of
the gradient's noise, as after adaptation. A cell is the smallest and the largest ratio of the four
sds to the exact ones; `mean` is the largest error of a mean in sds over the line, `theory` the
ratio that the discrete-time recursion has, with additive noise of mean variance, at the last batch
size of the line.

Batches are drawn with replacement (r), in shuffled epochs (s) or in sweeps, forwards and then
backwards through a permutation (f). BlackJAX and posteriors run their own samplers on the same
rows in the same coordinates, with step sizes and frictions converted: posteriors' log posterior is
divided by N, at the temperature 1 / N.

Arms beside the package's samplers: friction held at D + h nu / 2, where nu is the noise's variance
(SGNHT paper, eq 3 and appendix D: the estimate B); a matrix thermostat (SGNHT paper, eq 11); UBU, a
splitting with the exact solution U of position and friction together (Sanz-Serna and Zygalakis
2021); and MSGNHT_S with axes turned away from the noise's.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.stats import ortho_group

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import pymc_sgmcmc as sgm  # noqa: E402
from pymc_sgmcmc.algorithm import Algorithm  # noqa: E402
from pymc_sgmcmc.backends.backend import backend_of  # noqa: E402
from pymc_sgmcmc.batches.permutation import permutation  # noqa: E402
from pymc_sgmcmc.batches.shuffled import Batches  # noqa: E402
from pymc_sgmcmc.gradients.arrays import array_value  # noqa: E402
from pymc_sgmcmc.gradients.metric import Dense  # noqa: E402
from pymc_sgmcmc.gradients.model_gradient import gradient_source  # noqa: E402
from pymc_sgmcmc.loop import Loop  # noqa: E402
from pymc_sgmcmc.samplers.msgnht import MultivariateThermostatSymmetric  # noqa: E402
from pymc_sgmcmc.samplers.splitting import fixed_friction  # noqa: E402
from tests.samplers import stationary_covariance  # noqa: E402

N, D_THETA = 500, 4
BATCH_SIZES = (250, 50, 10)
ORDERS = ("r", "s", "f")
DIFFUSION = 1.0
STEPS = {"langevin": (0.02, 0.1, 0.4), "momentum": (0.05, 0.15, 0.3)}
EVERY = 20


# ---- the posterior ---------------------------------------------------------------------------


def data():
    """Rows with errors of Student's t, standardised: the noise differs from the curvature."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D_THETA)) @ np.linalg.cholesky(0.6 + 0.4 * np.eye(D_THETA)).T
    errors = rng.standard_t(3, N) * (1 + np.abs(X[:, 0]))
    return X, X @ np.linspace(-1, 1, D_THETA) + errors / errors.std()


def posterior(X, y):
    """Mean and covariance under w ~ N(0, 10^2) and unit errors."""
    covariance = np.linalg.inv(X.T @ X + np.eye(D_THETA) / 100)
    return covariance @ X.T @ y, covariance


def coordinates(X, y):
    """L, with L L' the posterior's covariance and axes of the gradient's noise; its variances.

    The variances are those of the whole data's gradient from one row, N^2 var(g_i).
    """
    mean, covariance = posterior(X, y)
    root = np.linalg.cholesky(covariance)
    rows = N * ((y - X @ mean)[:, None] * X) @ root
    variances, axes = np.linalg.eigh(np.cov(rows.T))
    return root @ axes, variances


# ---- arms that the package does not have -------------------------------------------------------


@dataclass(frozen=True)
class HeldFriction(MultivariateThermostatSymmetric):
    """ABOBA with the friction of each element held at D + h nu / 2: nu is set for each run."""

    thermostat = staticmethod(fixed_friction)


@dataclass(frozen=True)
class MatrixThermostat(Algorithm):
    """SGNHT with a matrix of thermostats (SGNHT paper, eq 11), by its Euler steps."""

    diffusion: float = 1.0

    def init(self, theta, rng):
        d = theta[0].size
        return {"p": [rng.standard_normal(d)], "xi": [self.diffusion * np.eye(d)]}

    def update(self, theta, state, gradient, h, noise):
        [p], [xi], [z] = state["p"], state["xi"], noise()
        p = p - h * (xi @ p) + h * gradient(theta).total[0] + pt.sqrt(2 * self.diffusion * h) * z
        xi = xi + h * (pt.outer(p, p) - pt.eye(p.shape[0]))
        return [theta[0] + h * p], {"p": [p], "xi": [xi]}


@dataclass(frozen=True)
class UBU(Algorithm):
    """Half a step of position and friction together, a kick, the other half.

    ``xi`` is the friction of each element, the injected noise of which is 2 D h / 2.
    """

    diffusion: float = 1.0

    def init(self, theta, rng):
        d = theta[0].size
        return {"p": [rng.standard_normal(d)], "xi": [np.full(d, self.diffusion)]}

    def update(self, theta, state, gradient, h, noise):
        [p], [xi] = state["p"], state["xi"]
        q, p = self._half(theta[0], p, xi, h / 2, noise)
        p = p + h * gradient([q]).total[0]
        q, p = self._half(q, p, xi, h / 2, noise)
        return [q], {"p": [p], "xi": [xi]}

    def _half(self, q, p, xi, t, noise):
        """dq = p dt, dp = -xi p dt + sqrt(2 D) dW, exactly."""
        [z1], [z2] = noise(), noise()
        decay = pt.exp(-xi * t)
        level = self.diffusion / xi  # the variance of p without kicks
        var_p = level * (1 - decay**2)
        var_q = level * (2 * t / xi - (3 - 4 * decay + decay**2) / xi**2)
        both = level * (1 - decay) ** 2 / xi
        noise_p = pt.sqrt(var_p) * z1
        noise_q = both / pt.sqrt(var_p) * z1 + pt.sqrt(pt.maximum(var_q - both**2 / var_p, 0)) * z2
        return q + (1 - decay) / xi * p + noise_q, decay * p + noise_p


@dataclass
class Arm:
    """A line of the table."""

    name: str
    algorithm: Algorithm
    friction_of_noise: bool = False
    """Whether the friction is held at D + h nu / 2 instead of D."""
    turned: bool = False
    steps: tuple[float, ...] = STEPS["momentum"]
    theory: Algorithm | None = None
    """Of affine updates with an additive noise."""


def arms() -> list[Arm]:
    """All samplers of the package, and others."""
    own = {name: getattr(sgm, name).algorithm_class for name in sgm.__all__ if name.isupper()}
    d, f = {"diffusion": DIFFUSION}, {"friction": DIFFUSION}
    preconditioned = own["PSGLD"](alpha=0.99, lam=0.9)
    symmetric = own["SGHMC_S"](**f)
    return [
        Arm("SGLD", own["SGLD"](), steps=STEPS["langevin"], theory=own["SGLD"]()),
        Arm("PSGLD", preconditioned, steps=STEPS["langevin"]),
        Arm("SGHMC_E", own["SGHMC_E"](**f), theory=own["SGHMC_E"](**f)),
        Arm("SGHMC_S", symmetric, theory=symmetric),
        Arm("SGHMC_S + B", HeldFriction(**d), friction_of_noise=True),
        Arm("UBU", UBU(**d)),
        Arm("UBU + B", UBU(**d), friction_of_noise=True),
        Arm("SGNHT", own["SGNHT"](**d)),
        Arm("SGNHT_S", own["SGNHT_S"](**d)),
        Arm("SGNHT matrix", MatrixThermostat(**d)),
        Arm("MSGNHT_E", own["MSGNHT_E"](**d)),
        Arm("MSGNHT_S", own["MSGNHT_S"](**d)),
        Arm("MSGNHT_S turned", own["MSGNHT_S"](**d), turned=True),
    ]


# ---- running ---------------------------------------------------------------------------------


class Sweeps:
    """Row numbers of permutations, each read forwards and then backwards."""

    def __init__(self, n_rows: int, batch_size: int, rng: np.random.Generator):
        self.n_rows, self.batch_size, self.rng = n_rows, batch_size, rng
        self.left = np.empty(0, np.int64)

    def take(self, n_batches: int) -> np.ndarray:
        """Row indices of the next batches, shape (n_batches, batch_size)."""
        need = n_batches * self.batch_size
        parts = [self.left]
        while sum(map(len, parts)) < need:
            order = np.empty(self.n_rows, np.int64)
            permutation(self.rng, self.n_rows).fill(order, 0)
            parts += [order, order[::-1]]
        rows = np.concatenate(parts)
        self.left = rows[need:]
        return rows[:need].reshape(n_batches, self.batch_size)


def batches(order: str, batch_size: int, rng: np.random.Generator):
    """A stream of row numbers."""
    if order == "f":
        return Sweeps(N, batch_size, rng)
    return Batches(N, batch_size, rng, replacement=order == "r")


class Run:
    """An arm's compiled updates."""

    def __init__(self, arm: Arm, X, y, L):
        self.arm = arm
        with pm.Model() as model:
            w = pm.Normal("w", 0, 10, shape=D_THETA)
            pm.Normal("y", pm.Data("X", X) @ w, 1, observed=y)
        self.metric = Dense([(D_THETA,)])
        self.metric.set(L)
        # The size of a batch is the length of its row numbers.
        self.source = {
            n: gradient_source(model, list(model.value_vars), batch_size=n) for n in BATCH_SIZES
        }
        self.loops: dict[int, Loop] = {}

    def draws(self, h: float, n: int, order: str, draws: int, noise: np.ndarray, start, seed):
        """Draws of theta, shape (draws, d)."""
        source = self.source[n]
        rng = np.random.default_rng(seed)
        state = self.arm.algorithm.init([np.zeros(D_THETA)], rng)
        if self.arm.friction_of_noise:
            state["xi"] = [DIFFUSION + h * noise / 2]
        elif "xi" in state and not isinstance(self.arm.algorithm, HeldFriction | UBU):
            added = h * noise / 2
            [xi] = state["xi"]
            expected = (added.mean(), added, np.diag(added))[xi.ndim]
            state["xi"] = [np.asarray(xi + expected)]
        if n not in self.loops:
            self.loops[n] = Loop(source, self.arm.algorithm, self.metric, state, {})
        loop = self.loops[n]
        generator = backend_of(loop.mode).generator(rng.spawn(1)[0])
        stream = batches(order, n, rng)
        constants = [np.asarray(N / n), *(array_value(a) for a, _ in source.data)]
        constants += self.metric.arrays
        steps, theta = np.full(EVERY, h), [start.copy()]
        kept = np.empty((draws, D_THETA))
        burn_in = draws // 10
        for k in range(draws + burn_in):
            out = loop(steps, [stream.take(EVERY)], theta, state, generator, constants)
            theta, state, generator = out.theta, out.state, out.rng
            kept[k - burn_in] = theta[0]  # the burn-in's are overwritten
        return kept


def compare(draws, mean, L):
    """Smallest and largest sd ratio along the axes of z, and the largest error of a mean."""
    z = np.linalg.solve(L, (draws - mean).T)
    return z.std(axis=1), np.abs(z.mean(axis=1)).max()


def theory_of(arm: Arm, h: float, noise: float) -> str:
    """The sd that the recursion has on N(0, I) with this additive noise."""
    if arm.theory is None:
        return "-"
    with np.errstate(all="ignore"):
        variance = stationary_covariance(arm.theory, np.eye(1), h, noise)[0, 0]
    return f"{np.sqrt(variance):.2f}" if variance > 0 else "-"


# ---- rivals ----------------------------------------------------------------------------------


def blackjax_lines(X, y, draws):
    """BlackJAX's samplers, on rows drawn with replacement: (name, h, cells) with draws of theta."""
    import blackjax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    L, _ = coordinates(X, y)
    mean, _ = posterior(X, y)
    Xj, yj, Lj, mj = (jnp.asarray(a) for a in (X, y, L, mean))

    def log_prior(z):
        return -0.5 * jnp.sum((mj + Lj @ z) ** 2) / 100

    def log_likelihood(z, row):  # vectorised over rows by BlackJAX
        return -0.5 * (yj[row] - Xj[row] @ (mj + Lj @ z)) ** 2

    gradient = blackjax.sgmcmc.gradients.grad_estimator(log_prior, log_likelihood, N)
    samplers = {
        "blackjax.sgld": (blackjax.sgld(gradient), STEPS["langevin"]),
        "blackjax.sgnht": (blackjax.sgnht(gradient, DIFFUSION, 0.0), STEPS["momentum"]),
    }
    for name, (sampler, steps) in samplers.items():
        for h in steps:
            cells = {}
            for n in BATCH_SIZES:
                key, has_momentum = jax.random.PRNGKey(n), "sgnht" in name
                start = jnp.zeros(D_THETA)
                state = sampler.init(start, key) if has_momentum else sampler.init(start)
                step = h if has_momentum else h / 2  # its SGLD moves by step * gradient

                def one(state, key, step=step, n=n, sampler=sampler):
                    rows_key, key = jax.random.split(key)
                    rows = jax.random.randint(rows_key, (n,), 0, N)
                    return sampler.step(key, state, rows, step), None

                def draw(state, key, one=one, has_momentum=has_momentum):
                    state, _ = jax.lax.scan(one, state, jax.random.split(key, EVERY))
                    return state, state.position if has_momentum else state

                run = jax.jit(lambda s, keys, draw=draw: jax.lax.scan(draw, s, keys))
                _, z = run(state, jax.random.split(key, draws + draws // 10))
                z = np.asarray(z)[draws // 10 :]
                cells[n] = mean + z @ L.T
            yield name, h, cells


def posteriors_lines(python: str, X, y, draws):
    """The same of posteriors, in another interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        L, _ = coordinates(X, y)
        mean, _ = posterior(X, y)
        np.savez(path, X=X, y=y, L=L, mean=mean)
        settings = {"draws": draws, "every": EVERY, "batch_sizes": BATCH_SIZES, "steps": STEPS}
        command = [python, str(HERE / "bias_posteriors.py"), str(path), json.dumps(settings)]
        subprocess.run(command, check=True)
        with np.load(path.with_suffix(".out.npz")) as found:
            for key in found.files:
                name, h = key.split()
                z = dict(zip(BATCH_SIZES, found[key], strict=True))
                yield name, float(h), {n: mean + values @ L.T for n, values in z.items()}


# ---- the table -------------------------------------------------------------------------------


def main():
    """Run all arms and write the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--only", help="names that contain this")
    parser.add_argument("--posteriors", metavar="PYTHON")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "bias_table.txt")
    args = parser.parse_args()
    X, y = data()
    mean, _ = posterior(X, y)
    L, noise = coordinates(X, y)
    turn = ortho_group.rvs(D_THETA, random_state=1)
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        print(line, flush=True)
        args.out.write_text("\n".join(lines) + "\n")

    began = time.perf_counter()
    write(f"python benchmarks/bias_table.py --draws {args.draws}")
    write(f"{N} rows, {D_THETA} weights; {args.draws} draws, one every {EVERY} updates; D = 1.")
    write("Ratio of sds to the exact ones, smallest-largest; Monte Carlo error about .01 to .02.")
    nu = ", ".join(f"{noise.mean() / n:.3g} for {n}" for n in BATCH_SIZES)
    write(f"Mean variance of the gradient's noise along z, by rows per batch: {nu};")
    write(f"largest / smallest along an axis: {noise.max() / noise.min():.1f}.")
    write("")
    cells = [f"{n}{order}" for n in BATCH_SIZES for order in ORDERS]
    titles = "".join(f"{c:>11}" for c in cells)
    write(f"{'sampler':<17}{'h':>5}{titles}{'mean':>7}{'theory':>8}")

    def line(name: str, h: float, values: dict[str, Any], theory: str) -> None:
        shown, errors = [], []
        for cell in cells:
            if cell not in values or not np.isfinite(values[cell]).all():
                shown.append(f"{'-' if cell not in values else 'diverged':>11}")
                continue
            sds, error = compare(values[cell], mean, L)
            errors.append(error)
            pair = f"{sds.min():.2f}-{sds.max():.2f}" if sds.max() < 100 else "diverged"
            shown.append(f"{pair:>11}")
        largest = f"{max(errors):7.2f}" if errors and max(errors) < 100 else f"{'-':>7}"
        write(f"{name:<17}{h:>5.2f}" + "".join(shown) + largest + f"{theory:>8}")

    for arm in arms():
        if args.only and args.only not in arm.name:
            continue
        axes = L @ turn if arm.turned else L
        run = Run(arm, X, y, axes)
        for h in arm.steps:
            values = {
                f"{n}{order}": run.draws(h, n, order, args.draws, noise / n, mean, seed=1)
                for n in BATCH_SIZES
                for order in ORDERS
            }
            line(arm.name, h, values, theory_of(arm, h, noise.mean() / BATCH_SIZES[-1]))
    rivals = []
    if importlib.util.find_spec("blackjax") is not None:
        rivals.append(blackjax_lines(X, y, args.draws))
    if args.posteriors:
        rivals.append(posteriors_lines(args.posteriors, X, y, args.draws))
    for rival in rivals:
        for name, h, found in rival:
            if not args.only or args.only in name:
                line(name, h, {f"{n}r": draws for n, draws in found.items()}, "-")
    write(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
