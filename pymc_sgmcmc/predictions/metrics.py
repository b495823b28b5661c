"""Metrics of predictions, as NumPy functions of predictions and labels, and checks of labels."""

from typing import Any

import numpy as np

from pymc_sgmcmc.number_checks import shown

SMALLEST = float(np.finfo(np.float64).tiny)
"""Smallest probability used in logarithms, so that a probability of 0 does not mask all others."""
BINS = 15
"""Number of bins of the confidence for the calibration error, as in Guo et al.'s (2017) tables."""
CLASSIFICATION = ("accuracy", "log_likelihood", "brier", "calibration_error")
"""Metrics of predicted classes."""
REGRESSION = ("rmse",)
"""Metrics of predicted numbers."""
HIGHER_IS_BETTER = {"accuracy", "log_likelihood"}
"""Metrics of which larger values are better; for the others smaller values are better."""


def of_classes(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the metrics of probabilities, shape (rows, classes), for labels of shape (rows,).

    ``log_likelihood`` is a mean over rows in nats; ``brier`` sums squared differences over classes.
    """
    rows = np.arange(len(labels))
    right = probabilities.argmax(axis=1) == labels
    of_labels = probabilities[rows, labels]
    squares = np.sum(probabilities**2, axis=1) - 2 * of_labels + 1
    return {
        "accuracy": float(right.mean()),
        "log_likelihood": float(np.log(np.maximum(of_labels, SMALLEST)).mean()),
        "brier": float(squares.mean()),
        "calibration_error": calibration_error(probabilities, labels),
    }


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the expected calibration error of the most probable class (Guo et al. 2017, eq 3).

    It is the mean of abs(accuracy - mean probability) over bins of that probability.
    """
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    bin_of = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bin_of, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(labels))


def of_numbers(predictions: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """Return the metrics of predicted numbers: the root mean square error ``rmse``."""
    return {"rmse": float(np.sqrt(np.mean((predictions - values) ** 2)))}


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Return the entropy in nats of each row of probabilities of shape (rows, classes)."""
    return -np.sum(probabilities * np.log(np.maximum(probabilities, SMALLEST)), axis=1)


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
