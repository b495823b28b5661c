"""How good predictions are: NumPy functions of predictions and labels."""

import numpy as np

SMALLEST = float(np.finfo(np.float64).tiny)
"""Probabilities count as at least this in logarithms, so that -inf does not hide all others."""
BINS = 15
"""Of the confidence, for the calibration error."""
CLASSIFICATION = ("accuracy", "log_likelihood", "brier", "calibration_error")
REGRESSION = ("rmse",)
HIGHER_IS_BETTER = {"accuracy", "log_likelihood"}


def of_classes(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Metrics of predicted probabilities of classes, by the names of `CLASSIFICATION`.

    Parameters
    ----------
    probabilities : array, shape (rows, classes)
    labels : array of int, shape (rows,)
        From 0.

    Returns
    -------
    dict of float
        ``accuracy``: share of rows whose most probable class is the label. ``log_likelihood``: mean
        log probability of the labels, in nats. ``brier``: mean over rows of the sum over classes of
        the squared differences from the label's indicator, 0 to 2. ``calibration_error``: see
        `calibration_error`.

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.4, 0.6]])
    >>> {k: round(v, 3) for k, v in of_classes(p, np.array([0, 0])).items()}
    {'accuracy': 0.5, 'log_likelihood': -0.511, 'brier': 0.37, 'calibration_error': 0.35}
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


def calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = BINS) -> float:
    """Expected calibration error of the most probable class.

    Rows are put into bins of equal width by the probability of their most probable class; the
    result is the mean of abs(accuracy - mean probability) over bins, weighted by their rows.

    Parameters
    ----------
    probabilities : array, shape (rows, classes)
    labels : array of int, shape (rows,)
    bins : int, default 15

    Returns
    -------
    float
        Between 0 and 1.

    References
    ----------
    C. Guo, G. Pleiss, Y. Sun and K. Q. Weinberger (2017), On calibration of modern neural networks,
    ICML, eq 3.

    Examples
    --------
    >>> p = np.array([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.8, 0.2]])
    >>> round(calibration_error(p, np.array([0, 0, 0, 1])), 3)
    0.05
    """
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def of_numbers(predictions: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """Metrics of predicted numbers: the root mean square error ``rmse``.

    Parameters
    ----------
    predictions, values : arrays of one shape

    Examples
    --------
    >>> of_numbers(np.array([1.0, 2.0]), np.array([1.0, 4.0]))["rmse"]
    1.4142135623730951
    """
    return {"rmse": float(np.sqrt(np.mean((predictions - values) ** 2)))}


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Entropy of each row in nats, shape (rows,), of probabilities of shape (rows, classes)."""
    return -np.sum(probabilities * np.log(np.maximum(probabilities, SMALLEST)), axis=1)
