"""What is recorded of each draw besides the point, and of which type."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pymc.stats.convergence import SamplerWarning


def statistic_types(
    names: Sequence[str], step_sizes: Sequence[str]
) -> dict[str, tuple[type, list | None]]:
    """Types and shapes of a draw's statistics, including the sampler's own ``names``."""
    return {
        **{name: (np.float64, []) for name in [*step_sizes, *names]},
        "potential": (np.float64, []),
        "gradient_norm": (np.float64, []),
        "nonfinite": (bool, []),
        "n_updates": (np.int64, []),
        "warning": (SamplerWarning, None),
    }


def draw_statistics(
    step_sizes: dict[str, Any],
    own: dict[str, Any],
    potential: Any,
    gradient_norm: Any,
    nonfinite: Any,
    n_updates: Any,
    warning: Any,
) -> dict[str, Any]:
    """Return the statistics of a draw, or arrays of those of many, by name.

    Parameters
    ----------
    step_sizes : dict
        Of the last update, by the step's ``step_size_names``.
    own : dict
        What the algorithm and the gradient source report.
    potential, gradient_norm, nonfinite, n_updates, warning
        As in an `Advance`.
    """
    return {
        **step_sizes,
        **own,
        "potential": potential,
        "gradient_norm": gradient_norm,
        "nonfinite": nonfinite,
        "n_updates": n_updates,
        "warning": warning,
    }
