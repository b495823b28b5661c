"""Splitting integrators: an update is a string of letters, each an exact or Euler sub-step.

A momentum sampler follows (high-order paper eq 2; xi acts element by element)

    d theta = p dt,   dp = (-xi p + g) dt + sqrt(2 D T) dW,   d xi = (p * p - T) dt.

T is the temperature: the stationary distribution is posterior^(1 / T), with p ~ N(0, T).

Each letter advances one part of it by a time ``h``:

======  ============================================  ==============================
letter  update                                        solves
======  ============================================  ==============================
``X``   theta += h p                                  the drift, exactly
``T``   xi += h (p * p - T) / m                       the thermostat, exactly
``A``   X and T together                              sub-SDE A of eq 3, exactly
``B``   p *= exp(-h xi)                               sub-SDE B of eq 3, exactly
``b``   p -= h xi p                                   the friction, by an Euler step
``i``   p /= 1 + h xi                                 the friction, by an implicit Euler step
``O``   p += h g(theta) + N(0, 2 D T h)               sub-SDE O of eq 3 at fixed theta
======  ============================================  ==============================

N(0, s) has VARIANCE s. A letter that occurs k times in a splitting advances by h / k each time, so
every splitting advances the whole system by h; the letters of the friction, B, b and i, count
together. A splitting is read from left to right.

m is the thermostat's mass, 1 in the papers.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.vectorized_math import exp

Tensors = list[TensorVariable]

EULER = "XbOT"
"""Splitting of mSGNHT-E (high-order paper 2.2), of order 1."""

SYMMETRIC = "ABOBA"
"""Splitting of mSGNHT-S (high-order paper eq 3), of order 2: the same in both directions."""

MIDPOINT = "AbOiA"
"""`SYMMETRIC` with the friction by the implicit midpoint rule (Gronbech-Jensen and Farago 2013,
Mol. Phys. 111), of order 2; on a normal posterior the variance where the gradient is taken is exact
at any step size, whereas that of `SYMMETRIC` is cosh(h xi / 2) times too large."""

MOMENTUM_FIRST = "bOXT"
"""Splitting of SGNHT (SGNHT paper, Algorithm 1), of order 1."""


def drift_to_gradient(splitting: str) -> float:
    """Return the part of a drift between an update's end and the nearest gradient.

    It is 0.5 for ``ABOBA``, and 0 where the gradient is taken at the ends of updates.
    """

    def drift_before_gradient(letters: str) -> float:
        before = takewhile(lambda letter: not LETTERS[letter].takes_gradient, letters)
        return sum((1 / letters.count(letter) for letter in before if LETTERS[letter].drifts), 0.0)

    return min(drift_before_gradient(splitting), drift_before_gradient(splitting[::-1]))


class Phase(NamedTuple):
    """A point of the extended space, with one entry per variable, or a single one for xi."""

    theta: Tensors
    p: Tensors
    xi: Tensors

    @property
    def friction(self) -> Tensors:
        """xi, with one entry per variable."""
        return self.xi if len(self.xi) == len(self.p) else self.xi * len(self.p)


class Dynamics(NamedTuple):
    """The dynamics that move a point of the extended space."""

    force: Callable[[Tensors], Sequence[TensorVariable]]
    """theta -> g, the stochastic gradient of the log posterior."""
    noise: Callable[[], Sequence[TensorVariable]]
    """Returns fresh N(0, I) draws shaped like theta at each call."""
    diffusion: float
    """D: the injected noise has variance 2 D T per unit of time."""
    thermostat: "Thermostat"
    temperature: float = 1.0
    n_elements: Tensors | None = None
    """Number of elements of each entry of p that move, the others being 0; None if all move."""
    mass: float = 1.0
    """Mass m of the thermostat: the larger it is, the more slowly the thermostat reacts."""


class Thermostat(Protocol):
    """How xi reacts to the kinetic energy: `fixed_friction`, `elementwise` or `shared`."""

    def __call__(self, phase: Phase, dt: TensorVariable, dynamics: Dynamics) -> Tensors: ...


def fixed_friction(phase: Phase, dt: TensorVariable, dynamics: Dynamics) -> Tensors:
    """Leave xi unchanged: a fixed friction (SGHMC)."""
    return phase.xi


def elementwise(phase: Phase, dt: TensorVariable, dynamics: Dynamics) -> Tensors:
    """Advance one xi per element of p: xi += h (p * p - T) (high-order paper 2.2, T = 1)."""
    temperature = dynamics.temperature
    return [x + dt * (q * q - temperature) for x, q in zip(phase.xi, phase.p, strict=True)]


def shared(phase: Phase, dt: TensorVariable, dynamics: Dynamics) -> Tensors:
    """Advance one xi for all n elements of p: xi += h (p.p / n - T) (SGNHT paper eq 6, T = 1)."""
    p, n_elements = phase.p, dynamics.n_elements
    if n_elements is None:
        n_elements = [q.size for q in p]
    n = sum(n_elements, start=pt.constant(0)).astype(p[0].dtype)
    p_dot_p = sum((pt.sum(q * q) for q in p), start=pt.constant(0, dtype=p[0].dtype))
    return [phase.xi[0] + dt * (p_dot_p / n - dynamics.temperature)]


def drift(phase: Phase, dt: TensorVariable, dynamics: Dynamics) -> Phase:
    """X: move theta along p."""
    return phase._replace(theta=[t + dt * q for t, q in zip(phase.theta, phase.p, strict=True)])


def react(phase: Phase, dt: TensorVariable, dynamics: Dynamics) -> Phase:
    """T: let the thermostat react to the kinetic energy."""
    return phase._replace(xi=dynamics.thermostat(phase, dt / dynamics.mass, dynamics))


def drift_and_react(phase: Phase, dt: TensorVariable, dynamics: Dynamics) -> Phase:
    """A: apply X and T, neither of which changes what the other depends on."""
    return react(drift(phase, dt, dynamics), dt, dynamics)


def damp(phase: Phase, dt: TensorVariable, dynamics: Dynamics) -> Phase:
    """B: apply the friction exactly."""
    return phase._replace(
        p=[exp(-dt * x) * q for x, q in zip(phase.friction, phase.p, strict=True)]
    )


def damp_euler(phase: Phase, dt: TensorVariable, dynamics: Dynamics) -> Phase:
    """b: apply the friction by an Euler step."""
    return phase._replace(p=[q - dt * x * q for x, q in zip(phase.friction, phase.p, strict=True)])


def damp_implicit(phase: Phase, dt: TensorVariable, dynamics: Dynamics) -> Phase:
    """i: apply the friction by an implicit Euler step."""
    return phase._replace(
        p=[q / (1 + dt * x) for x, q in zip(phase.friction, phase.p, strict=True)]
    )


def kick(phase: Phase, dt: TensorVariable, dynamics: Dynamics) -> Phase:
    """O: apply the gradient and the noise."""
    sd = pt.sqrt(2 * dynamics.diffusion * dynamics.temperature * dt)
    given = zip(phase.p, dynamics.force(phase.theta), dynamics.noise(), strict=True)
    return phase._replace(p=[q + dt * g + sd * z for q, g, z in given])


class Letter(NamedTuple):
    """One sub-step, which advances a point by a time."""

    advance: Callable[[Phase, TensorVariable, Dynamics], Phase]
    drifts: bool = False
    """Whether it moves theta along p."""
    takes_gradient: bool = False


LETTERS = {
    "X": Letter(drift, drifts=True),
    "T": Letter(react),
    "A": Letter(drift_and_react, drifts=True),
    "B": Letter(damp),
    "b": Letter(damp_euler),
    "i": Letter(damp_implicit),
    "O": Letter(kick, takes_gradient=True),
}
"""The letters of the module's table."""
FRICTION = "Bbi"
"""Letters of the friction, whose occurrences in a splitting are counted together."""


def integrate(splitting: str, phase: Phase, h: TensorVariable, dynamics: Dynamics) -> Phase:
    """Advance a point by ``h`` with the letters of a splitting, one after another."""
    for letter in splitting:
        if letter not in LETTERS:
            raise ValueError(
                f"The splitting '{splitting}' has the letter '{letter}': use only letters of "
                f"'{''.join(LETTERS)}'."
            )
    for letter in splitting:
        alike = FRICTION if letter in FRICTION else letter
        dt = h / sum(map(splitting.count, alike))
        phase = LETTERS[letter].advance(phase, dt, dynamics)
    return phase
