"""Coordinates in which the posterior's standard deviations are about 1."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from xarray import DataTree

LARGEST_COVARIANCE = 500
"""Largest number of elements of theta for which the covariance of the draws serves as a metric; it
needs 10 draws for each element."""


class Coordinates(NamedTuple):
    """Coordinates z with theta = L z, and the sampler's anchor and gradient there."""

    matrix: np.ndarray
    """L, shape (d, d)."""
    metric: str
    """Origin of L, for the report."""
    anchor: np.ndarray | None = None
    """Anchor of the control variate, shape (d,)."""
    anchor_gradient: np.ndarray | None = None
    """The sampler's gradient of the log likelihood of all rows at the anchor, shape (d,)."""
    row_copies: np.ndarray | None = None
    """Number of times that each row is among those from which the sampler drew, shape (N,)."""


def stored_coordinates(idata: DataTree, names: Sequence[str]) -> Coordinates | None:
    """Return the warm-up's metric and anchor, if the result has them for this model."""
    if "adaptation" not in idata.children:
        return None
    group = idata["adaptation"].to_dataset()
    if group.sizes["element"] != len(names) or group["metric"].ndim == 1:
        return None
    matrix, name = group["metric"].values, "that of the warm-up"
    if not group["anchor_gradient"].values.any():  # no control variate
        return Coordinates(matrix, name)
    copies = None
    if "row_probability" in group:
        probability = group["row_probability"].values
        copies = np.rint(probability / probability.min()).astype(int)
    anchor, gradient = group["anchor"].values, group["anchor_gradient"].values
    return Coordinates(matrix, name, anchor, gradient, copies)


def coordinates_of_draws(draws: np.ndarray) -> Coordinates:
    """Return a root of the draws' covariance, or their standard deviations if d is large.

    Each column of L lies mostly along one element.
    """
    flat = draws.reshape(-1, draws.shape[2])
    n, size = flat.shape
    scale = flat.std(axis=0)
    scale[scale == 0] = 1.0
    if size > LARGEST_COVARIANCE or n < 10 * size:
        return Coordinates(np.diag(scale), "standard deviations of the draws")
    standardised = (flat - flat.mean(axis=0)) / scale
    values, vectors = np.linalg.eigh(standardised.T @ standardised / n)
    root = (vectors * np.sqrt(np.maximum(values, 1e-10))) @ vectors.T
    return Coordinates(scale[:, None] * root, "covariance of the draws")
