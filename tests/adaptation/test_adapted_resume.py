"""A run that adapts itself, killed at any moment: it ends as if it had never been."""

from dataclasses import replace
from functools import partial

import numpy as np
import pymc as pm
import pytest
from kills import (
    CHAINS,
    ROWS,
    X,
    Y,
    adapting_model,
    adapting_run,
    killed_after,
    same,
    warm_up_calls,
)

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation import metric_and_batch_size
from pymc_sgmcmc.adaptation.adapted_settings import UnfitAdaptation
from pymc_sgmcmc.adaptation.curvature_warm_up import CurvatureWarmUp
from pymc_sgmcmc.storage.record import adapted_path

pytestmark = pytest.mark.slow(15)

DRAWS, TUNE = 30, 5
run = partial(adapting_run, draws=DRAWS, tune=TUNE)


@pytest.fixture
def _batches(monkeypatch):
    """Batches even of few rows, so that there is an anchor."""
    monkeypatch.setattr(metric_and_batch_size, "FEW_ROWS", 0)


@pytest.fixture
def warm_ups(monkeypatch, tmp_path):
    """Counts warm-ups, those of forked processes too: returns how many there have been."""
    begun, original = tmp_path / "warm-ups", CurvatureWarmUp.run
    begun.touch()

    def counted(self, point):
        with open(begun, "a") as file:
            file.write("+")
        return original(self, point)

    monkeypatch.setattr(CurvatureWarmUp, "run", counted)
    return lambda: len(begun.read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A model, the store of an undisturbed run, its result, and the draws of its warm-up."""
    model, path = adapting_model(), tmp_path_factory.mktemp("finished") / "run.zarr"
    result, of_warm_up = warm_up_calls(lambda: run(path, model), CHAINS * (DRAWS + TUNE))
    return model, path, result, of_warm_up


@pytest.mark.long
@pytest.mark.slow(30)
def test_killed_at_any_moment(finished, warm_ups, tmp_path):
    """Once in the warm-up, then twice later: it is made again only where it was cut."""
    model, _, expected, of_warm_up = finished
    path = tmp_path / "run.zarr"
    rng = np.random.default_rng(0)
    assert killed_after(lambda: run(path, model), rng.integers(of_warm_up))
    assert not path.exists()
    assert warm_ups() == 1
    assert killed_after(lambda: run(path, model), of_warm_up + rng.integers(1, 30))
    assert warm_ups() == 2
    assert path.exists()
    assert killed_after(lambda: run(path, model), rng.integers(1, 15))
    result = run(path, model)
    assert warm_ups() == 2
    assert same(result, expected)


@pytest.mark.long
def test_extended_without_another_warm_up(finished, warm_ups):
    model, path, expected, _ = finished
    longer = run(path, model, draws=DRAWS + 5, random_seed=None)
    assert warm_ups() == 0
    np.testing.assert_array_equal(longer.posterior["w"][:, :DRAWS], expected.posterior["w"])
    assert longer.posterior.attrs["adaptation"] == expected.posterior.attrs["adaptation"]


@pytest.mark.parametrize("damage", ["missing", pytest.param("damaged", marks=pytest.mark.long)])
def test_without_the_file_of_the_warm_up(finished, warm_ups, damage, caplog):
    """It is made again, and is the same."""
    model, path, expected, _ = finished
    file = adapted_path(path)
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(whole[: len(whole) // 2])
    try:
        again = run(path, model, draws=DRAWS + 5, quiet=False, progressbar=False)
    finally:
        file.write_bytes(whole)
    assert warm_ups() == 1
    np.testing.assert_array_equal(again.posterior["w"][:, :DRAWS], expected.posterior["w"])
    assert ("adapted.npz is damaged" in caplog.text) == (damage == "damaged")


@pytest.mark.parametrize(
    ("y", "named"),
    [(Y[:ROWS] + 1e-9, "model: 'y' is different"), (Y[: ROWS - 1], "data: 'X' is different")],
    ids=["other data", "other rows"],
)
def test_other_data_are_refused(finished, y, named):
    _, path, _, _ = finished
    with pytest.raises(ValueError, match="cannot be resumed by this one") as caught:
        run(path, adapting_model(y), draws=DRAWS + 5)
    caught.match(named)


def test_another_model_is_refused(finished):
    _, path, _, _ = finished
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3, shape=2)
        pm.Normal("y", pm.Data("X", X[:ROWS]) @ w, 1.0, observed=Y[:ROWS])
    with pytest.raises(ValueError, match="cannot be resumed by this one") as caught:
        run(path, model)
    caught.match("'s' is missing")


JAX = {"compile_kwargs": {"mode": "JAX"}}


@pytest.mark.long
@pytest.mark.usefixtures("_batches")
def test_batches_around_an_anchor_resume(warm_ups, tmp_path):
    """Anchor, its gradient and the rows' weights come from the store too."""

    def interrupt(trace, draw):
        if draw.chain == 1 and draw.draw_idx == 9:
            raise KeyboardInterrupt

    model = adapting_model(Y)
    expected = run(tmp_path / "undisturbed.zarr", model, **JAX)
    path = tmp_path / "run.zarr"
    run(path, model, callback=interrupt, **JAX)
    assert warm_ups() == 2
    assert min(sgm.ZarrStore(path).n_draws) < DRAWS
    result = run(path, model, **JAX)
    assert warm_ups() == 2
    for name in ("w", "s"):
        np.testing.assert_array_equal(result.posterior[name], expected.posterior[name])
    stored = sgm.ZarrStore(path).adapted
    assert stored.batch_size == 32
    assert np.abs(stored.anchor_gradient).max() > 0


@pytest.mark.long
@pytest.mark.usefixtures("_batches")
def test_earlier_adaptation_given_to_a_step(warm_ups):
    """A step takes what another one's warm-up has chosen, if it is of such a model."""
    model = adapting_model(Y)
    with model:
        # Without a generator of their own: they adapt alike, and only the run's seed decides.
        one, alike = sgm.MSGNHT_S(**JAX), sgm.MSGNHT_S(**JAX)
        assert warm_ups() == 2
        other = sgm.MSGNHT_S(adaptation=one.adapted, **JAX)
        by_hand = sgm.MSGNHT_S(adaptation=one.adapted, thin=3, step_size=0.1, **JAX)
    assert warm_ups() == 2
    assert other.adapted is one.adapted
    assert repr(other) == repr(one) == repr(alike)
    assert (by_hand.thin, by_hand.schedule.value, by_hand.adapted.thin) == (3, 0.1, 3)
    start = model.initial_point()
    draws = []
    for step in (one, alike, other):
        step.setup_chain(np.random.default_rng(2), tune=0, draws=3)
        draws.append(step.step(start)[0])
    for name in start:
        np.testing.assert_array_equal(draws[0][name], draws[1][name])
        np.testing.assert_array_equal(draws[0][name], draws[2][name])
    with model, pytest.raises(UnfitAdaptation, match=r"32 rows per batch, but .* 16 rows"):
        sgm.MSGNHT_S(adaptation=one.adapted, batch_size=16, **JAX)
    other_rows = replace(one.adapted, n_rows=299)
    with pytest.raises(UnfitAdaptation, match="299 rows, but MSGNHT_S has 300 rows"):
        other_rows.check(one.kernel)
