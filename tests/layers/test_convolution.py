"""Convolution and pooling: against loops, finite differences, in batches, over chains."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph

import pymc_sgmcmc as sgm

MODE = pytensor.compile.mode.Mode("py", "fast_compile")
RNG = np.random.default_rng(0)


def convolved(images, kernel):
    """By its definition."""
    n, height, width, _ = images.shape
    rows, columns, _, new = kernel.shape
    out = np.zeros((n, height - rows + 1, width - columns + 1, new))
    for b, i, j, o in np.ndindex(*out.shape):
        window = images[b, i : i + rows, j : j + columns]
        out[b, i, j, o] = np.sum(window * kernel[..., o])
    return out


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("shape", [(3, 2, 2, 4), (1, 1, 2, 3), (2, 4, 2, 1)])
def test_convolution_by_its_definition(shape, padding):
    images, kernel = RNG.normal(size=(3, 5, 6, 2)), RNG.normal(size=shape)
    padded, (rows, columns) = images, shape[:2]
    if padding == "same":
        zeros = [((n - 1) // 2, n - 1 - (n - 1) // 2) for n in (rows, columns)]
        padded = np.pad(images, [(0, 0), *zeros, (0, 0)])
    expected = convolved(padded, kernel)
    found = sgm.conv2d(images, kernel, padding=padding)
    assert found.type.shape[1:] == expected.shape[1:]
    np.testing.assert_allclose(found.eval(mode=MODE), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_pooling_by_its_definition(size):
    images = RNG.normal(size=(2, 6, 7, 3))
    found = sgm.max_pool2d(images, size).eval(mode=MODE)
    assert found.shape == (2, 6 // size, 7 // size, 3)
    for b, i, j, c in np.ndindex(*found.shape):
        window = images[b, i * size : (i + 1) * size, j * size : (j + 1) * size, c]
        assert found[b, i, j, c] == window.max()


def small_network(x, k1, k2):
    h = sgm.max_pool2d(pt.tanh(sgm.conv2d(x, k1)))
    return pt.sum(sgm.conv2d(h, k2, padding="same") ** 2)


def test_gradients_by_finite_differences():
    values = [RNG.normal(size=s) for s in [(2, 7, 6, 1), (2, 3, 1, 3), (3, 2, 3, 2)]]
    inputs = [pt.tensor(shape=v.shape, dtype="float64") for v in values]
    loss = small_network(*inputs)
    function = pytensor.function(inputs, [loss, *pt.grad(loss, inputs)], mode=MODE)
    _, *gradients = function(*values)
    directions = [RNG.normal(size=v.shape) for v in values]
    eps = 1e-6
    plus, minus = (
        function(*(v + sign * eps * d for v, d in zip(values, directions, strict=True)))[0]
        for sign in (1, -1)
    )
    slope = sum(np.sum(g * d) for g, d in zip(gradients, directions, strict=True))
    np.testing.assert_allclose((plus - minus) / (2 * eps), slope, rtol=1e-7)


def test_equal_maxima_have_one_gradient():
    x = pt.tensor(shape=(1, 4, 4, 1), dtype="float64")
    gradient = pt.grad(pt.sum(sgm.max_pool2d(x)), x).eval({x: np.zeros((1, 4, 4, 1))}, mode=MODE)
    assert gradient.sum() == 4


@pytest.mark.long
def test_many_chains_at_once():
    """A leading axis on the kernels, as for chains in one call; the images are shared."""
    x = RNG.normal(size=(2, 7, 6, 1))
    kernels = [RNG.normal(size=s) for s in [(5, 2, 3, 1, 3), (5, 3, 2, 3, 2)]]
    one = [pt.tensor(shape=k.shape[1:], dtype="float64") for k in kernels]
    loss = small_network(x, *one)
    outputs = [loss, *pt.grad(loss, one)]
    alone = pytensor.function(one, outputs, mode=MODE)
    many = [pt.tensor(shape=k.shape, dtype="float64") for k in kernels]
    together = pytensor.function(
        many, vectorize_graph(outputs, dict(zip(one, many, strict=True))), mode=MODE
    )(*kernels)
    for c in range(5):
        for got, expected in zip(together, alone(*(k[c] for k in kernels)), strict=True):
            np.testing.assert_allclose(got[c], expected, rtol=1e-10)


@pytest.mark.long
def test_a_network_in_batches():
    """A step checks that disjoint batches add up; chains in one call predict as their draws do."""
    X, y = RNG.normal(size=(40, 64)), RNG.integers(3, size=40)
    with pm.Model() as model:
        images = pm.Data("X", X).reshape((-1, 8, 8, 1))
        kernel = pm.Normal("kernel", 0, 0.3, shape=(3, 3, 1, 4))
        hidden = sgm.max_pool2d(pt.maximum(sgm.conv2d(images, kernel), 0), 3)
        W = pm.Normal("W", 0, 0.3, shape=(2 * 2 * 4, 3))
        logits = hidden.reshape((-1, 2 * 2 * 4)) @ W
        pm.Categorical("y", logit_p=logits, observed=y)
        step = sgm.SGHMC_S(step_size=0.01, batch_size=10, compile_kwargs={"mode": "JAX"})
        predictions = sgm.Predictions("y", {"X": X[:7]}, y[:7])
        tree = sgm.sample(
            3,
            tune=2,
            chains=2,
            step=step,
            chain_method="vectorized",
            random_seed=1,
            predictions=predictions,
            quiet=True,
            compute_convergence_checks=False,
        )
    probabilities = []
    for W, kernel in zip(
        tree.posterior["W"].values.reshape(6, 16, 3),
        tree.posterior["kernel"].values.reshape(6, 3, 3, 1, 4),
        strict=True,
    ):
        h = np.maximum(convolved(X[:7].reshape(-1, 8, 8, 1), kernel), 0)
        h = h.reshape(7, 2, 3, 2, 3, 4).max(axis=(2, 4)).reshape(7, 16) @ W
        e = np.exp(h - h.max(axis=1, keepdims=True))
        probabilities.append(e / e.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(
        tree.test_predictions["mean"], np.mean(probabilities, axis=0), rtol=1e-5
    )
    assert model["kernel"].type.shape == (3, 3, 1, 4)


IMAGE, KERNEL = np.zeros((2, 5, 5, 3)), np.zeros((3, 3, 3, 4))
BAD = [
    (lambda: sgm.conv2d(IMAGE, KERNEL[:, :, :2]), "the images have 3 channels .* is for 2"),
    (lambda: sgm.conv2d(IMAGE[0], KERNEL), "the images have 3 axes, but must have four"),
    (lambda: sgm.conv2d(IMAGE, KERNEL[0]), "the kernel has the shape"),
    (lambda: sgm.conv2d(pt.tensor4("x"), KERNEL), "reshape them with numbers"),
    (lambda: sgm.conv2d(IMAGE, np.zeros((6, 1, 3, 1))), "6 x 1 pixels do not fit into the image"),
    (lambda: sgm.conv2d(IMAGE, KERNEL, padding="full"), "padding='full' must be"),
    (lambda: sgm.max_pool2d(IMAGE, 6), "size=6 must be a whole number between 1 and"),
    (lambda: sgm.max_pool2d(IMAGE, 1.5), "size=1.5 must be a whole number"),
    (lambda: sgm.max_pool2d(IMAGE[0]), "max_pool2d: the images have 3 axes"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_shapes(call, message):
    with pytest.raises(ValueError, match=message):
        call()
