"""How good predictions are, by NumPy functions of predictions and labels."""

import numpy as np

SMALLEST = float(np.finfo(np.float64).tiny)
"""Probabilities count as at least this in logarithms, so that one of 0 does not hide all others."""
BINS = 15
"""Number of bins of the confidence for the calibration error, as in the tables of Guo et al.
(2017)."""
CLASSIFICATION = ("accuracy", "log_likelihood", "brier", "calibration_error")
"""Metrics of predicted classes."""
REGRESSION = ("rmse",)
"""Metrics of predicted numbers."""
HIGHER_IS_BETTER = {"accuracy", "log_likelihood"}
"""Metrics of which larger values are better; of the others smaller ones are."""


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
