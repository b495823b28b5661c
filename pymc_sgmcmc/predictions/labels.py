"""Labels of test rows: which task they belong to, and whether they fit the predictions."""

from typing import Any

import numpy as np

from pymc_sgmcmc.argument_checks import shown


def as_classes(p: np.ndarray) -> np.ndarray:
    """Return probabilities of shape (rows, classes), adding the first of two classes if needed."""
    if p.ndim == 2:
        return p
    p = np.asarray(p, dtype=np.float64)
    return np.stack([1 - p, p], axis=1)


def looks_like_classes(p: np.ndarray, labels: np.ndarray | None) -> bool:
    """Return whether predictions are probabilities of classes and labels are numbers of classes."""
    if labels is None or labels.dtype.kind not in "biu":
        return False
    if p.min() < 0 or p.max() > 1 + 1e-5:
        return False
    if p.ndim == 1:
        return bool(np.isin(labels, (0, 1)).all())
    return p.ndim == 2 and bool(np.allclose(p.sum(axis=1), 1, atol=1e-4))


def check_labels(labels: np.ndarray, p: np.ndarray, task: str, var: str) -> None:
    """Raise an error for labels that do not fit the predictions of a variable.

    ``p`` has predictions at any point, for classification of shape (rows, classes).
    """
    if task == "regression":
        if labels.shape != p.shape:
            raise ValueError(
                f"labels has the shape {labels.shape}, but '{var}' has {p.shape} on the test data: "
                "they must be the same."
            )
        if not np.isfinite(labels.astype(float)).all():
            raise ValueError("labels has values that are not finite: leave out these rows.")
        return
    if labels.ndim != 1 or labels.dtype.kind not in "biu":
        raise ValueError(
            f"labels must be whole numbers of shape (rows,), got {labels.dtype} of shape "
            f"{labels.shape}."
        )
    outside = (labels < 0) | (labels >= p.shape[1])
    if outside.any():
        row = int(np.argmax(outside))
        raise ValueError(
            f"labels has the class {labels[row]} in row {row}, but '{var}' has {p.shape[1]} "
            f"classes: they must be from 0 to {p.shape[1] - 1}."
        )


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise an error unless an argument is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={shown(value)} must be one of {', '.join(map(repr, allowed))}.")
