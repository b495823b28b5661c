"""What the belief networks' examples rest on: deformed digits, and estimates for the test set."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy.special import expit, logsumexp

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module", autouse=True)
def examples():
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def digits(examples):
    from deformed_digits import DeformedDigits

    grey = np.zeros((3, 28, 28), dtype=np.uint8)
    grey[0, 10:18, 10:18] = 255
    grey[1, 4:24, 13:15] = 255
    grey[2] = 255
    return DeformedDigits(grey.reshape(3, 784), n_rows=900)


def test_a_deformed_digit_depends_on_its_number_alone(digits):
    some = digits[30:36]
    assert some.shape == (6, 784)
    assert some.dtype == np.uint8
    np.testing.assert_array_equal(digits[33], some[3])
    np.testing.assert_array_equal(digits[np.array([35, 31])], some[[5, 1]])
    assert (digits[30] != digits[33]).any()  # of the same original


def test_deformed_digits_are_about_as_large_and_in_the_middle(digits):
    """Of 300 images of a square of 64 pixels: area, mean place and its sd, as their laws say.

    Zoom, shear and bend change areas by about 15 percent, so their mean has an error of 1 percent;
    places move by the shift, 1 pixel, and about half a pixel of the mean bend.
    """
    squares = digits[0:900:3].reshape(-1, 28, 28).astype(float)
    area = squares.sum(axis=(1, 2))
    assert abs(area.mean() / 64 - 1) < 0.1
    assert 0.05 < area.std() / 64 < 0.3
    rows = (squares * np.arange(28)[:, None]).sum(axis=(1, 2)) / area
    assert abs(rows.mean() - 13.5) < 4 * 1.2 / np.sqrt(300)
    assert 0.9 < rows.std() < 1.6


def test_a_pixel_is_one_with_the_probability_of_its_intensity(examples):
    """An even grey of 51 / 255 = 0.2, away from the edge: 300 x 64 pixels, 4 standard errors."""
    from deformed_digits import DeformedDigits

    digits = DeformedDigits(np.full((1, 784), 51, dtype=np.uint8), n_rows=300)
    middle = digits[:].reshape(-1, 28, 28)[:, 10:18, 10:18]
    assert abs(middle.mean() - 0.2) < 4 * np.sqrt(0.2 * 0.8 / middle.size)


@pytest.mark.long
@pytest.mark.slow(12)
def test_the_estimate_for_the_test_set_is_that_of_all_its_rows(examples):
    """Against the sum over the 8 states of the hidden units.

    Ten of 400 rows are evaluated well. Their mean alone is off by more than the error allowed here,
    which is that of the difference, of the annealing and of rounding to 0.1.
    """
    pytest.importorskip("jax")
    from belief_networks import belief_network, evaluation

    rng = np.random.default_rng(4)
    theta = {"b": rng.normal(size=3), "w1": 2 * rng.normal(size=(3, 6)), "c1": rng.normal(size=6)}
    x = (rng.random((400, 6)) < 0.5).astype(np.uint8)
    z = np.array(list(itertools.product([0, 1], repeat=3)))
    p = expit(z @ theta["w1"] + theta["c1"])
    joint = np.log(np.where(z, expit(theta["b"]), expit(-theta["b"]))).sum(axis=1)
    joint = joint + np.log(np.where(x[:, None] == 1, p, 1 - p)).sum(axis=2)
    log_p = logsumexp(joint, axis=1)
    order = np.argsort(log_p).reshape(2, -1)  # first the less probable half of the rows
    order = np.concatenate([rng.permutation(half) for half in order])
    x, log_p = x[order], log_p[order]

    draws = xr.Dataset(
        {
            name: (("chain", "draw", *(f"{name}_{k}" for k in range(v.ndim))), v[None, None])
            for name, v in theta.items()
        }
    )
    found = evaluation(
        belief_network(x, [3]), draws, x, 10, None, 0, layers=1, chains=16, temperatures=200, seed=1
    )
    assert abs(log_p[:10].mean() - log_p.mean()) > 1
    assert abs(float(found["test set"]) - log_p.mean()) < 0.05 + 0.1
    assert float(found["test set +-"]) < 0.2
