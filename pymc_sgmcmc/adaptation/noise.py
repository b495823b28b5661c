"""The covariance of the gradient's minibatch noise, from gradients of single rows."""

import numpy as np

from pymc_sgmcmc.gradients.metric import Metric
from pymc_sgmcmc.gradients.row_gradients import RowGradients

POSITIONS = 50
ROWS_PER_POSITION = 512


def noise_covariance(
    gradients: RowGradients,
    metric: Metric,
    positions: np.ndarray,
    anchor: np.ndarray | None,
    urn: np.ndarray | None,
    batch_size: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Estimate the covariance of L' times a batch's gradient, shape (d, d).

    ``positions`` are points of the chains, shape (n, d), ``anchor`` is that of the control variate,
    if there is one, and ``urn`` has each row as often as it is likely (None: all alike). The
    ``batch_size`` rows of a batch are drawn with replacement.
    """
    n_rows = gradients.n_rows
    if urn is None:
        urn = np.arange(gradients.n_at_hand)
        factors = np.full(urn.size, float(n_rows))
    else:
        factors = len(urn) / np.bincount(urn, minlength=n_rows)  # 1 / q
    total = np.zeros((gradients.size, gradients.size))
    for theta in positions:
        rows = urn[rng.integers(len(urn), size=ROWS_PER_POSITION)]
        each = gradients.rows(theta, rows)[1]
        if anchor is not None:
            each = each - gradients.rows(anchor, rows)[1]
        each = metric.transposed_times(factors[rows, None] * each)
        each -= each.mean(axis=0)
        total += each.T @ each / (ROWS_PER_POSITION - 1)
    return total / (len(positions) * batch_size)
