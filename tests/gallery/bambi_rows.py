"""The data frame of the Bambi models, and what they have in common."""

import bambi as bmb
import numpy as np
import pandas as pd
import pymc as pm

from gallery.rows import (
    BINARY,
    CLASS,
    COUNT,
    GROUP,
    OTHER_GROUP,
    POSITIVE,
    REAL,
    TABLE,
    TRIALS,
    UNIT,
    WITH_ZEROS,
    N,
    X,
)

ROW_DIM = "__obs__"
"""Bambi's name of the rows."""

FRAME = pd.DataFrame(
    {
        "y": REAL,
        "x": X[:, 0],
        "z": X[:, 1],
        "u": UNIT,
        "positive": POSITIVE,
        "share": UNIT,
        "count": COUNT,
        "binary": BINARY,
        "level": CLASS,
        "kind": pd.Categorical(np.array(list("abcde"))[CLASS]),
        "three": pd.Categorical(np.array(["low", "mid", "top"])[CLASS % 3]),
        "g": pd.Categorical(np.array(list("pqrs"))[GROUP]),
        "h": pd.Categorical(np.array(list("tuvwxyz"))[OTHER_GROUP]),
        "successes": TRIALS // 2,
        "trials": TRIALS,
        "angle": np.arctan(REAL),
        "with_zeros": WITH_ZEROS,
        "clipped": np.clip(REAL, -1.0, 1.0),
        "status": np.where(REAL >= 1, "right", np.where(REAL <= -1, "left", "none")),
        "inside": np.clip(REAL, -1.9, 1.9),
        "weight": POSITIVE,
        "exposure": POSITIVE,
        **{f"n{k}": TABLE[:, k] for k in range(TABLE.shape[1])},
    }
)
assert len(FRAME) == N


def built(formula, family="gaussian", **options) -> pm.Model:
    """PyMC's model of a formula; a list is several formulas."""
    formulas = [formula] if isinstance(formula, str) else formula
    model = bmb.Model(bmb.Formula(*formulas), FRAME, family=family, **options)
    model.build()
    return model.backend.model
