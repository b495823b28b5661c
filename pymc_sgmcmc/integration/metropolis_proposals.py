"""Independent proposals for Metropolis's algorithm, in units of each group's middle and factor."""

from typing import Protocol

import numpy as np

from pymc_sgmcmc.integration.quadrature_points import Points

EXTRA_DEGREES = 7
"""Degrees of freedom of the Student density in addition to the number of effects: for a normal
density, the effective share of its weights is then .98 with one effect."""
UNIFORM = 0.2
"""Share of the uniform density in that of a histogram, because other values of the shared
parameters may give weight to another mode."""


class Proposals(Protocol):
    """A density for each group."""

    def draw(self, rng: np.random.Generator, groups: np.ndarray, n: int) -> np.ndarray:
        """Return draws for m groups, shape (n, m, k)."""

    def log_density(self, groups: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the log density up to a constant of each group, shape (n, m)."""


class Student:
    """Student densities, whose tails suffice for log rates of groups with few counts."""

    def __init__(self, k: int):
        self.k, self.degrees = k, k + EXTRA_DEGREES

    def draw(self, rng, groups, n):
        x = rng.standard_normal((n, len(groups), self.k))
        return x / np.sqrt(rng.chisquare(self.degrees, size=x.shape[:2]) / self.degrees)[..., None]

    def log_density(self, groups, x):
        power = (self.degrees + self.k) / 2
        return -power * np.log1p(np.sum(x**2, axis=-1) / self.degrees)


class Histograms:
    """Histograms of densities, which may have several modes, over the equal cells of a grid."""

    def __init__(self, points: Points, h: np.ndarray):
        """Take log densities at equally spaced points, shape (points, groups)."""
        self.x = points.x
        nodes = np.unique(self.x)
        self.first, self.width, self.n = nodes[0], nodes[1] - nodes[0], len(nodes)
        p = np.exp(h - h.max(axis=0)).T
        p = (1 - UNIFORM) * p / p.sum(axis=1, keepdims=True) + UNIFORM / len(self.x)
        self.log_p, self.cumulated = np.log(p), np.cumsum(p, axis=1)

    def draw(self, rng, groups, n):
        u = rng.uniform(size=(n, len(groups)))
        cell = np.stack([(self.cumulated[groups] < one[:, None]).sum(axis=1) for one in u])
        x = self.x[np.minimum(cell, len(self.x) - 1)]
        return x + self.width * (rng.uniform(size=x.shape) - 0.5)

    def log_density(self, groups, x):
        along = np.rint((x - self.first) / self.width).astype(int).clip(0, self.n - 1)
        cell = along @ self.n ** np.arange(x.shape[-1])[::-1]
        return self.log_p[groups, cell]
