"""The common part of the momentum samplers: p ~ N(0, T I), an integrator and its diagnostics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytensor.tensor as pt

from pymc_sgmcmc.algorithm import Algorithm, State, Tensors, check_temperature
from pymc_sgmcmc.number_checks import nonnegative_number
from pymc_sgmcmc.samplers.splitting import Dynamics, Phase, Thermostat, drift_to_gradient, integrate


def check_noise(name: str, value: float) -> None:
    """Raise an error that names a hyperparameter which is not a finite number >= 0."""
    remedy = f"The injected noise has the variance 2 {name} step_size per update (default 1)."
    nonnegative_number(name, value, remedy)


def momentum(
    theta: Sequence[np.ndarray], rng: np.random.Generator, temperature: float = 1.0
) -> list[np.ndarray]:
    """Draw p ~ N(0, T I) in the shapes and float types of theta."""
    sd = temperature**0.5
    return [np.asarray(sd * rng.standard_normal(t.shape), dtype=t.dtype) for t in theta]


def mean(arrays: Tensors):
    """Return the mean over all elements of all arrays, which may be too large to join."""
    total = pt.add(*(a.sum() for a in arrays))
    return total / pt.add(*(a.size for a in arrays)).astype(total.dtype)


def mean_square(p: Tensors):
    """Return the mean of p * p over all elements: the kinetic temperature, T in equilibrium."""
    return mean([q * q for q in p])


@dataclass(frozen=True)
class ThermostatAlgorithm(Algorithm):
    """The update of mSGNHT and SGNHT: momentum p, thermostat xi, injected noise and a splitting.

    ``diffusion`` is D >= 0: the injected noise has variance 2 D T h per update.
    """

    diffusion: float = 1.0
    temperature: float = 1.0

    splitting: ClassVar[str]
    thermostat: ClassVar[Thermostat]
    mass: ClassVar[float] = 1.0
    """Mass of the thermostat; the larger it is, the more slowly the thermostat reacts."""
    statistics = ("kinetic_temperature", "thermostat")
    dynamics = "thermostat"
    thermostats = "xi"
    counts_elements = True

    def __post_init__(self):
        check_noise("diffusion", self.diffusion)
        check_temperature(self.temperature)

    @property
    def injected_noise(self) -> float:
        return self.diffusion

    @property
    def drift_to_gradient(self) -> float:
        return drift_to_gradient(self.splitting)

    def update(self, theta, state, gradient, h, noise, n_elements=None):
        dynamics = Dynamics(
            lambda theta: gradient(theta).total,
            noise,
            self.diffusion,
            self.thermostat,
            self.temperature,
            n_elements,
            self.mass,
        )
        start = Phase(theta, state["p"], state["xi"])
        theta, p, xi = integrate(self.splitting, start, h, dynamics)
        return theta, {"p": p, "xi": xi}

    def diagnostics(self, state: State) -> Tensors:
        return [mean_square(state["p"]), mean(state["xi"])]

    def burn_in_warning(self, diagnostics, n_elements, shuffled):
        # Friction reacts to each update's noise, but over an epoch that noise cancels, so the
        # draws are too narrow. 4 sqrt(T / n) is 4 sds of the mean of xi, whose elements have
        # variance T, or less with a larger mass.
        absorbed = diagnostics["thermostat"] - self.diffusion
        if not shuffled or absorbed < max(
            0.5 * self.diffusion, 4 * (self.temperature / n_elements) ** 0.5
        ):
            return None
        return (
            f"minibatch noise has raised the thermostat ({diagnostics['thermostat']:.3g}) far "
            f"above diffusion={self.diffusion:.3g}, but batches come from shuffled epochs, over "
            "which that noise cancels: posterior standard deviations may be too small. Pass "
            "replacement=True, a smaller step_size, or a larger batch_size or diffusion."
        )
