"""A student learns to predict like the average of its teacher's draws."""

import numpy as np
import pymc as pm
import pytensor
import pytest
from scipy.special import softmax

import pymc_sgmcmc as sgm

MODE = {"mode": pytensor.compile.mode.Mode("py", "fast_compile")}
RNG = np.random.default_rng(1)
X = RNG.normal(size=(300, 2))


def linear(prior_sd=10.0, classes=3):
    with pm.Model() as model:
        W = pm.Normal("W", 0, prior_sd, shape=(2, classes))
        x = pm.Data("X", X[:5])
        pm.Deterministic("p", pm.math.softmax(x @ W, axis=1))
        pm.Deterministic("number", x @ W)
    return model


def taught(draws, var="p", **options):
    """Averages over given draws, which need no sampler."""
    teacher = sgm.Predictions(
        var, {"X": X}, model=linear(), compile_kwargs=MODE, batch_size=300, **options
    )
    teacher.check({"W": draws[0]})
    teacher.begin_chain(0)
    for W in draws:
        teacher.add(0, {"W": W}, [])
    return teacher


DRAWS = np.array([[1.0, 0, -1], [0, 1, -1]]) + 0.3 * RNG.normal(size=(20, 2, 3))
FAST = {"epochs": 40, "batch_size": 30, "learning_rate": 0.1, "random_seed": 1}


@pytest.mark.long
def test_a_student_with_the_right_form_finds_the_teacher():
    """One teacher's draw is a softmax itself: the loss falls to that draw's entropy."""
    teacher = taught(DRAWS[:1], task="classification")
    student = sgm.distill(teacher, linear(), compile_kwargs=MODE, **FAST)
    p = softmax(X @ DRAWS[0], axis=1)
    np.testing.assert_allclose(student.predict({"X": X}), p, atol=0.01)
    entropy = -np.mean(np.sum(p * np.log(p), axis=1))
    assert student.loss[0] > student.loss[-1] > entropy - 0.01
    assert student.loss[-1] < entropy + 0.001
    assert set(student.values) == {"W"}


def test_the_average_is_what_is_learned():
    """On the average of draws: nearer to it than to any single draw."""
    teacher = taught(DRAWS, task="classification")
    average = softmax(X @ DRAWS, axis=-1).mean(axis=0)
    student = sgm.distill(teacher, linear(), compile_kwargs=MODE, **FAST)
    found = student.predict({"X": X})
    assert np.abs(found - average).mean() < 0.02
    assert np.abs(found - softmax(X @ DRAWS[0], axis=1)).mean() > 0.03
    tight = sgm.distill(teacher, linear(prior_sd=0.01), compile_kwargs=MODE, **FAST)
    assert np.abs(tight.predict({"X": X}) - 1 / 3).max() < 0.1  # its prior counts


@pytest.mark.slow(3)
def test_numbers_by_least_squares():
    teacher = taught(DRAWS, "number")
    student = sgm.distill(teacher, linear(), compile_kwargs=MODE, **FAST)
    np.testing.assert_allclose(student.values["W"], DRAWS.mean(axis=0), atol=0.01)
    again = sgm.distill(teacher, linear(), compile_kwargs=MODE, **FAST)
    np.testing.assert_array_equal(again.values["W"], student.values["W"])
    started = sgm.distill(
        teacher, linear(), start={"W": DRAWS.mean(axis=0)}, compile_kwargs=MODE, **FAST
    )
    assert started.loss[0] < 0.1 * student.loss[0]


def test_bad_students():
    teacher = taught(DRAWS[:2])
    with pytest.raises(ValueError, match="'p' has the shape \\(rows, 4\\), but the teacher's"):
        sgm.distill(teacher, linear(classes=4), compile_kwargs=MODE)
    with pytest.raises(ValueError, match="has no variable 'q': pass var="):
        sgm.distill(teacher, linear(), "q", compile_kwargs=MODE)
    with pytest.raises(ValueError, match="the student has no free variable 'V'"):
        sgm.distill(teacher, linear(), start={"V": 0}, compile_kwargs=MODE)
    of_wrong_shape = {linear().free_RVs[0].name: np.zeros(7)}
    with pytest.raises(ValueError, match=r"start: '.*' has the shape \(7,\), but .* in the"):
        sgm.distill(teacher, linear(), start=of_wrong_shape, compile_kwargs=MODE)
    with pytest.raises(ValueError, match="learning_rate must be a positive"):
        sgm.distill(teacher, linear(), learning_rate=0, compile_kwargs=MODE)
    with pytest.raises(ValueError, match="has no draws yet"):
        sgm.distill(sgm.Predictions("p", {"X": X}, model=linear()), linear())
    with pm.Model() as other:
        pm.Deterministic("p", pm.Data("Z", X) @ pm.Normal("w", shape=(2, 3)))
    with pytest.raises(ValueError, match=r"no pm.Data of this name\. It has: Z"):
        sgm.distill(teacher, other, compile_kwargs=MODE)
    with pytest.raises(ValueError, match="loss is not finite after 0 updates"):
        sgm.distill(teacher, linear(), start={"W": np.full((2, 3), np.nan)}, compile_kwargs=MODE)
