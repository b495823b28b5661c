"""Synthetic rows that the forms share: few, so that Python evaluates them quickly."""

import numpy as np

N = 30
"""Rows. No other length is the same: a count of groups, features, classes or knots."""
BATCH = 6
N_NEW = 42
"""Rows after `pm.set_data`."""
GROUPS, FEATURES, CLASSES = 4, 3, 5


def draw(n: int, seed: int) -> dict[str, np.ndarray]:
    """Columns of ``n`` rows; every group and every class occurs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, FEATURES))
    return {
        "x": x,
        "real": x @ [0.5, -1.0, 0.3] + rng.normal(size=n),
        "positive": rng.gamma(3.0, 0.5, size=n) + 0.05,
        "unit": rng.beta(2.0, 2.0, size=n),
        "count": rng.poisson(2.0, size=n),
        "binary": rng.permutation(np.arange(n) % 2),
        "class": rng.permutation(np.arange(n) % CLASSES),
        "group": rng.permutation(np.arange(n) % GROUPS),
        "other_group": rng.permutation(np.arange(n) % 7),
        "trials": rng.integers(5, 12, size=n),
        "table": rng.multinomial(9, [0.1, 0.2, 0.3, 0.2, 0.2], size=n),
    }


ROWS = draw(N, seed=0)
NEW_ROWS = draw(N_NEW, seed=1)

X, REAL, POSITIVE, UNIT = (ROWS[c] for c in ("x", "real", "positive", "unit"))
COUNT, BINARY, CLASS = (ROWS[c] for c in ("count", "binary", "class"))
GROUP, OTHER_GROUP, TRIALS, TABLE = (ROWS[c] for c in ("group", "other_group", "trials", "table"))
WITH_ZEROS = np.where(BINARY == 1, POSITIVE, 0.0)
"""For hurdles of positive values."""

COORDS = {
    "obs": np.arange(N),
    "feature": ["a", "b", "c"],
    "group": list("pqrs"),
    "class": list("ABCDE"),
}


def new_rows(**columns: str):
    """Other rows for the containers named, each with a column of `NEW_ROWS`, along dim 'obs'."""

    def values():
        return {
            **{container: NEW_ROWS[column] for container, column in columns.items()},
            "coords": {"obs": np.arange(N_NEW)},
        }

    return values
