"""Several updates with the same batch: the right rows, however calls are cut, saved and resumed."""

import numpy as np
import pymc as pm
import pytest

import pymc_sgmcmc as sgm
from pymc_sgmcmc.batches.repeated import RepeatedBatches
from pymc_sgmcmc.batches.shuffled import Batches
from pymc_sgmcmc.batches.streamed_batches import StreamedBatches

JAX = {"mode": "JAX"}
RNG = np.random.default_rng(2)
N = 300
X = RNG.normal(size=(N, 2))
Y = X @ [1.0, -1.0] + RNG.normal(size=N)
TIMES = 3


def numbers():
    return Batches(n_rows=20, batch_size=3, rng=np.random.default_rng(1))


def rows_on_disk():
    data = sgm.StreamedData({"a": np.arange(20.0), "b": np.arange(40).reshape(20, 2)}, window=12)
    return StreamedBatches(data, batch_size=3, rng=np.random.default_rng(1))


def as_rows(taken):
    """One array, shape (updates, batch size, columns), of either kind."""
    if isinstance(taken, dict):
        return np.column_stack([taken["a"], taken["b"]]).reshape(-1, 3, 3)
    return taken[:, :, None]


@pytest.mark.parametrize("make", [numbers, rows_on_disk])
def test_each_batch_serves_several_updates(make):
    batches = as_rows(make().take(8))
    expected = np.repeat(batches, TIMES, axis=0)
    repeated = RepeatedBatches(make(), TIMES)
    found = [as_rows(repeated.take(n)) for n in (1, 1, 4, 2, 9, 5, 2)]
    np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.mark.parametrize("make", [numbers, rows_on_disk])
@pytest.mark.parametrize("used", [0, 1, 2, 3, 7])
def test_a_restored_stream_goes_on(make, used):
    one, other = RepeatedBatches(make(), TIMES), RepeatedBatches(make(), TIMES)
    if used:
        one.take(used)
    other.state = one.state
    for n in (1, 5):
        np.testing.assert_array_equal(as_rows(one.take(n)), as_rows(other.take(n)))


def regression():
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3, shape=2)
        pm.Normal("y", pm.Data("X", X) @ w, 1.0, observed=Y)
    return model


def drawn(model, method="sequential", thin=7, **options):
    """Draws whose lengths are no multiples of the updates per batch."""
    step = {"step_size": 1e-4, "batch_size": 30, "thin": thin, "compile_kwargs": JAX}
    with model:
        made = sgm.SGLD(updates_per_batch=TIMES, **step)
        options = {"draws": 12, "tune": 3, "chains": 2, "random_seed": 1, "quiet": True} | options
        return sgm.sample(step=made, chain_method=method, **options)


def test_ways_to_run_chains_agree(tmp_path):
    model = regression()
    whole = drawn(model)
    together = drawn(model, "vectorized")
    np.testing.assert_allclose(together.posterior["w"], whole.posterior["w"], rtol=1e-12)
    drawn(model, draws=5, trace=tmp_path / "run")
    resumed = drawn(model, trace=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.posterior["w"], whole.posterior["w"])
    many = drawn(model, thin=1, draws=84, tune=21)
    np.testing.assert_allclose(many.posterior["w"][:, 6::7], whole.posterior["w"], rtol=1e-9)


def test_the_noise_adds_up_over_the_updates_of_a_batch():
    """With steps so small that nothing else moves, theta follows the gradients' sums.

    Over k updates of one batch the sum of gradients has k^2 times the variance of one of them, over
    k batches k times. Var(sum) is estimated from 2000 draws: a relative error of sqrt(2 / 2000),
    3%, for each; the ratio 3 is known to 5%, so 20% are 4 standard errors.
    """
    model = regression()
    moved = {}
    for times in (1, TIMES):
        with model:
            step = sgm.SGLD(
                step_size=1e-12,
                batch_size=10,
                thin=TIMES,
                updates_per_batch=times,
                replacement=True,
                temperature=1e-12,
                compile_kwargs=JAX,
            )
            tree = sgm.sample(2000, tune=0, chains=1, step=step, random_seed=3, quiet=True)
        moved[times] = np.diff(tree.posterior["w"].values[0], axis=0).var(axis=0)
    np.testing.assert_allclose(moved[TIMES] / moved[1], TIMES, rtol=0.2)


def test_a_schedule_counts_epochs_of_rows():
    with regression():
        step = sgm.SGLD(step_size=1e-4, batch_size=30, updates_per_batch=4, compile_kwargs=JAX)
    assert step.kernel.updates_per_epoch == 4 * N / 30
    assert "updates_per_batch=4" in repr(step)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 0.1, "updates_per_batch": 0}, "updates_per_batch=0 must be a whole number"),
        ({"step_size": 0.1, "updates_per_batch": True}, "updates_per_batch"),
        (
            {"step_size": 0.1, "updates_per_batch": 2, "batch_size": None},
            "updates_per_batch=2 needs batches",
        ),
        ({"updates_per_batch": 2}, "updates_per_batch= and an automatic step size"),
    ],
)
def test_bad_input(options, message):
    with regression(), pytest.raises(ValueError, match=message):
        sgm.MSGNHT_S(compile_kwargs=JAX, **options)
