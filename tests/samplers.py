"""The table of samplers that the common tests run over, and what they run them with.

A new sampler is one new row of `SAMPLERS`; its papers' update goes to `tests/references.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace
from scipy.linalg import solve_discrete_lyapunov

import pymc_sgmcmc as sgm
from pymc_sgmcmc.algorithm import Algorithm
from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.batches.shuffled import Batches
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.loop import Loop
from pymc_sgmcmc.samplers.msgnht import MultivariateThermostatSymmetric
from pymc_sgmcmc.step import SGMCMCStep
from tests.references import euler, kick_first, psgld, sgld, sgnht, sgnht_symmetric, symmetric

BACKENDS = ["NUMBA", "JAX", "CVM"]


class Sampler(NamedTuple):
    """One row: a sampler, and settings that suit targets of about unit scale."""

    step: type[SGMCMCStep]
    kind: Literal["linear", "thermostat", "preconditioned", "simplex"]
    """linear: on a Gaussian every update is an affine map of (theta, p) and of Gaussian noise.
    simplex: for probability simplexes only, which are its targets."""
    step_size: float
    bias: float
    """Bound on the bias at this step size: relative for second moments, in sd for means."""
    order: dict[str, int]
    """Order in the step size of the stationary variance's bias, for theta and p."""
    settings: dict[str, Any]
    """Hyperparameters for exact gradients."""
    noisy_settings: dict[str, Any]
    """Hyperparameters for minibatches."""
    reference: Callable | None
    """The papers' update in NumPy; None where the sampler's own tests have it."""

    @property
    def name(self) -> str:
        return self.step.__name__

    @property
    def n_gradients(self) -> int:
        """Gradients of an update."""
        return getattr(self.step.algorithm_class, "splitting", "O").count("O")

    @property
    def has_momentum(self) -> bool:
        return "p" in self.algorithm().init([np.zeros(1)], np.random.default_rng(0))

    @property
    def has_one_thermostat(self) -> bool:
        """For all variables together."""
        state = self.algorithm().init([np.zeros(1)] * 2, np.random.default_rng(0))
        return len(state.get("xi", [])) == 1

    def algorithm(self, **settings) -> Algorithm:
        return self.step.algorithm_class(**{**self.settings, **settings})


@dataclass(frozen=True)
class KickFirstThermostat(MultivariateThermostatSymmetric):
    """The integrator of docs/adding_a_sampler.md, with two gradients an update, at its ends."""

    splitting = "OBABO"


class KickFirst(sgm.MSGNHT_S):
    """Its step."""

    name = "kick_first"
    algorithm_class = KickFirstThermostat


# not 1, so that a wrong power of D shows
D = {"diffusion": 1.5}
F = {"friction": 1.5}
# not the prior's own sum of 3, so that it shows if A mattered
A = {"concentration": 5.0}
# PSGLD without minibatch noise is exact (for small steps) with alpha = 0 and Gamma only.
EXACT = {"alpha": 0.0, "lam": 5.0, "gamma": True}
# With minibatch noise V must average over many updates, or G correlates with the gradient.
AVERAGED = {"alpha": 0.99, "lam": 0.9}

SAMPLERS = [
    Sampler(sgm.SGLD, "linear", 0.01, 0.015, {"theta": 1}, {}, {}, sgld),
    Sampler(sgm.PSGLD, "preconditioned", 0.025, 0.03, {"theta": 1}, EXACT, AVERAGED, psgld),
    # On a Gaussian E's theta is of order 2 by accident; its momentum shows the true order.
    Sampler(sgm.SGHMC_E, "linear", 0.03, 0.03, {"theta": 2, "p": 1}, F, F, euler),
    Sampler(sgm.SGHMC_S, "linear", 0.03, 0.015, {"theta": 2, "p": 2}, F, F, symmetric),
    Sampler(sgm.SGNHT, "thermostat", 0.03, 0.03, {"theta": 1}, D, D, sgnht),
    Sampler(sgm.SGNHT_S, "thermostat", 0.03, 0.015, {"theta": 2}, D, D, sgnht_symmetric),
    # Its error on a quartic is too small for its order to show.
    Sampler(KickFirst, "thermostat", 0.03, 0.015, {}, D, D, kick_first),
    Sampler(sgm.MSGNHT_E, "thermostat", 0.03, 0.03, {"theta": 1}, D, D, euler),
    Sampler(sgm.MSGNHT_S, "thermostat", 0.03, 0.015, {"theta": 2}, D, D, symmetric),
    Sampler(sgm.SGRLD, "simplex", 0.002, 0.015, {"theta": 1}, A, A, None),
]
SIMPLEX = [s for s in SAMPLERS if s.kind == "simplex"]
UNCONSTRAINED = [s for s in SAMPLERS if s.kind != "simplex"]
LINEAR = [s for s in SAMPLERS if s.kind == "linear"]
THERMOSTATS = [s for s in SAMPLERS if s.kind == "thermostat"]
WITH_MOMENTUM = [s for s in UNCONSTRAINED if s.has_momentum]
LANGEVIN = [s for s in SAMPLERS if not s.has_momentum]
"""Without momentum: an element's update is a Gaussian draw, given theta."""


# ---- one update, evaluated in Python -------------------------------------------------------


class Given:
    """The gradient of densities written out by hand (`pymc_sgmcmc.algorithm.Gradient`)."""

    def __init__(self, theta, log_likelihood: Callable, log_prior: Callable | None, n_data: int):
        # at copies: a gradient with respect to an expression is none with respect to its inputs
        of = [t.type() for t in theta]
        self._of, self._theta = of, theta
        self._likelihood = pt.grad(log_likelihood(of), of)
        prior = [pt.zeros_like(v) for v in of]
        if log_prior is not None:
            prior = pt.grad(log_prior(of), of, disconnected_inputs="ignore")
        self.prior = self._at_theta(prior)
        self.likelihood = self._at_theta(self._likelihood)
        self.total = [p + g for p, g in zip(self.prior, self.likelihood, strict=True)]
        self.mean_likelihood = [g / n_data for g in self.likelihood]
        self._n_data = n_data

    def _at_theta(self, expressions):
        return clone_replace(expressions, dict(zip(self._of, self._theta, strict=True)))

    def mean_curvature(self, direction):
        along = sum(pt.sum(g * v) for g, v in zip(self._likelihood, direction, strict=True))
        product = pt.grad(along, self._of, disconnected_inputs="ignore")
        return [hv / self._n_data for hv in self._at_theta(product)]


class OneUpdate:
    """An algorithm's own symbolic update as a Python function, with gradient and noise given.

    Parameters
    ----------
    algorithm : Algorithm
    theta : list of arrays
        Examples that give the shapes.
    log_likelihood, log_prior : callables of the list of variables, giving a scalar
    n_data : int
        N, by which the mean likelihood divides.
    inputs : list of variables
        Further inputs of the log densities.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        theta: Sequence[np.ndarray],
        log_likelihood: Callable,
        log_prior: Callable | None = None,
        n_data: int = 1,
        inputs: Sequence = (),
    ):
        state = algorithm.init(theta, np.random.default_rng(0))
        self.names = {name: len(arrays) for name, arrays in state.items()}
        variables = [pt.tensor(shape=t.shape, dtype="float64") for t in theta]
        symbols = {
            name: [pt.tensor(shape=np.shape(a), dtype="float64") for a in arrays]
            for name, arrays in state.items()
        }
        h = pt.tensor("h", shape=algorithm.step_size_shape, dtype="float64")
        self.n_gradients = self.n_noises = 0
        noises: list = []

        def noise(like=None):
            self.n_noises += 1
            draws = [v.type() for v in (variables if like is None else like)]
            noises.extend(draws)
            return draws

        def gradient(at):
            self.n_gradients += 1
            return Given(at, log_likelihood, log_prior, n_data)

        new_theta, new_state = algorithm.update(variables, symbols, gradient, h, noise)
        assert set(new_state) == set(state)
        flat = [x for name in self.names for x in symbols[name]]
        new_flat = [x for name in self.names for x in new_state[name]]
        self.function = pytensor.function(
            [*variables, *flat, h, *noises, *inputs],
            [*new_theta, *new_flat],
            mode=Mode(linker="py", optimizer=None),
            on_unused_input="ignore",
        )
        self.n_vars = len(variables)

    def __call__(self, theta, state, h, *noises, inputs=()):
        """Next theta and state; ``noises`` has one list a call of ``noise()``."""
        flat = [x for name in self.names for x in state[name]]
        drawn = [z for draw in noises for z in draw]
        out = self.function(*theta, *flat, h, *drawn, *inputs)
        theta, rest = out[: self.n_vars], out[self.n_vars :]
        return theta, {name: [rest.pop(0) for _ in range(k)] for name, k in self.names.items()}


def stationary_covariance(
    algorithm: Algorithm,
    precision: np.ndarray,
    h: float,
    gradient_noise: np.ndarray | float = 0.0,
    xi: float | None = None,
) -> np.ndarray:
    """Exact covariance of (theta, p) on N(0, precision^-1) of a sampler whose updates are affine.

    Solves S = M S M' + Q, with M and Q read off the algorithm's own update. ``gradient_noise`` is
    the covariance of the gradient's estimate. ``xi`` is the value at which a thermostat stands,
    for those that only then are affine.
    """
    d = len(precision)
    error = pt.vector("error", dtype="float64")
    update = OneUpdate(
        algorithm,
        [np.zeros(d)],
        lambda theta: -0.5 * theta[0] @ pt.constant(precision) @ theta[0] + error @ theta[0],
        inputs=[error],
    )
    has_p = "p" in update.names
    n = 2 * d if has_p else d

    def image(x):
        state = {"p": [x[d:n]]} if has_p else {}
        state |= {} if xi is None else {"xi": [np.asarray(xi)]}
        theta, state = update([x[:d]], state, h, [x[n : n + d]], inputs=[x[n + d :]])
        return np.concatenate([theta[0], *state.get("p", [])])

    columns = np.column_stack([image(e) for e in np.eye(n + 2 * d)])
    np.testing.assert_allclose(image(np.zeros(n + 2 * d)), 0)
    M, from_noise, from_gradient = np.split(columns, [n, n + d], axis=1)
    Q = from_noise @ from_noise.T
    Q = Q + from_gradient @ (gradient_noise * np.eye(d)) @ from_gradient.T
    return solve_discrete_lyapunov(M, Q)


def stationary_law(points: np.ndarray, density: np.ndarray) -> np.ndarray:
    """Stationary probabilities of a chain on a line, on a grid that follows its scale.

    ``density[i, j]`` is that of moving to point i from point j.
    """
    balance = density * np.gradient(points)[:, None]
    balance = balance / balance.sum(axis=0) - np.eye(len(points))
    balance[-1] = 1.0  # one equation is superfluous; the probabilities sum to 1
    return np.linalg.solve(balance, np.eye(len(points))[-1])


# ---- many updates, compiled ----------------------------------------------------------------


class Chain:
    """The compiled loop of an algorithm on a model, called always with the same length."""

    def __init__(self, model, algorithm, mode: str | Mode, **batches):
        self.algorithm = algorithm
        self.source = gradient_source(model, list(model.value_vars), **batches)
        start = model.initial_point()
        self.start = [np.asarray(start[v.name]) for v in self.source.vars]
        state = algorithm.init(self.start, np.random.default_rng(0))
        self.loop = Loop(self.source, algorithm, None, state, {"mode": mode})
        self.backend = backend_of(self.loop.mode)

    def run(self, h, *, seed, snapshots, every, burn_in=0, start=None):
        """Snapshots of theta and state every ``every`` updates, after ``burn_in`` others.

        Returns a list of arrays, one per variable, and a dict of such lists; the first axis counts
        the snapshots.
        """
        rng = np.random.default_rng(seed)
        array = self.backend.array
        theta = [np.array(t) for t in (self.start if start is None else start)]
        state = self.algorithm.init(theta, rng)
        theta = [array(t) for t in theta]
        state = {name: [array(a) for a in arrays] for name, arrays in state.items()}
        batches = [Batches(r.n_rows, r.batch_size, rng, replacement=True) for r in self.source.rows]
        scales = [array(np.asarray(r.n_rows / r.batch_size)) for r in self.source.rows]
        data = [array(array_value(a)) for a, _ in self.source.data]
        noise = self.backend.generator(rng.spawn(1)[0])
        h = array(np.full((every, *np.shape(h)), h))
        kept = []
        for k in range(burn_in + snapshots):
            rows = [array(b.take(every)) for b in batches]
            out = self.loop(h, rows, theta, state, noise, [*scales, *data])
            theta, state, noise = out.theta, out.state, out.rng
            if k >= burn_in:
                flat = [*theta, *(a for arrays in state.values() for a in arrays)]
                kept.append([np.array(a) for a in flat])
        stacked = [np.stack(a) for a in zip(*kept, strict=True)]
        theta, rest = stacked[: len(theta)], stacked[len(theta) :]
        return theta, {name: [rest.pop(0) for _ in arrays] for name, arrays in state.items()}


# ---- comparing averages --------------------------------------------------------------------

Z = 5.0
"""Standard errors allowed: some 500 comparisons are made, each fails by chance once in 2e6."""


def assert_mean(values: np.ndarray, expected, bias=0.0) -> None:
    """The mean over the first axis, whose entries are independent, is as expected.

    The threshold is Z standard errors, taken from the entries' own spread, plus the bias allowed.
    """
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    off = np.abs(values.mean(axis=0) - expected)
    assert np.all(off <= Z * error + bias), (
        f"mean {values.mean(axis=0)}, expected {expected} within {Z * error} + {bias}"
    )


def blocks(values: np.ndarray, n_blocks: int = 25) -> np.ndarray:
    """Means of consecutive blocks of the first axis: nearly independent where blocks are long."""
    length = len(values) // n_blocks
    return values[: n_blocks * length].reshape(n_blocks, length, *values.shape[1:]).mean(axis=1)
