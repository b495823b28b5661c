"""All chains in one compiled call: the draws that each chain makes alone."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_sgmcmc as sgm
from pymc_sgmcmc.compiled_call_length import CallLength
from pymc_sgmcmc.run import chains_together, mapped_chains
from pymc_sgmcmc.run.chains_together import MAX_WARNINGS
from pymc_sgmcmc.run.mapped_chains import VectorizedChains
from pymc_sgmcmc.run.threaded_chains import ThreadedChains

jax = pytest.importorskip("jax")

ROUNDING = dict(rtol=1e-9, atol=1e-12)
"""float64: XLA may add up a batch of chains in another order than one chain."""
TUNE, DRAWS, CHAINS = 4, 30, 5
HERE = os.path.dirname(__file__)


def regression():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    with pm.Model(coords={"feature": ["a", "b", "c"]}) as model:
        w = pm.Normal("w", 0, 3, dims="feature")
        sigma = pm.HalfNormal("sigma", 1)
        pm.Deterministic("length", (w**2).sum())
        pm.Normal("y", X @ w, sigma, observed=X @ [1, 2, 3] + rng.normal(size=60))
    return model


def make_step(sampler=sgm.MSGNHT_S, **settings):
    defaults = {"step_size": 2e-3, "batch_size": 10, "thin": 10, "compile_kwargs": {"mode": "JAX"}}
    with regression():
        return sampler(**(defaults | settings))


@pytest.fixture(scope="module")
def step():
    return make_step()


def generators(n=CHAINS):
    return [np.random.default_rng([3, chain]) for chain in range(n)]


def starts(step, n=CHAINS):
    point = step.model.initial_point()
    return [{name: v + 0.1 * chain for name, v in point.items()} for chain in range(n)]


def alone(step, rng, point, n_draws):
    """Draws and statistics of one chain by the ordinary step."""
    step.setup_chain(rng, TUNE, DRAWS)
    draws, stats = [], []
    for _ in range(n_draws):
        point, [one] = step.step(point)
        draws.append(point)
        stats.append(one)
    return gathered(draws), gathered(stats)


def gathered(dicts):
    return {name: np.array([d[name] for d in dicts]) for name in dicts[0]}


def together(step, n=CHAINS, run=None):
    run = run or VectorizedChains(step, starts(step, n), generators(n), TUNE, DRAWS)
    blocks = list(run.run())
    assert [b.first for b in blocks[1:]] == [b.first + b.n for b in blocks[:-1]]
    draws = {
        v.name: np.concatenate([np.asarray(b.theta[k])[: b.n] for b in blocks]).swapaxes(0, 1)
        for k, v in enumerate(step.vars)
    }
    stats = {
        name: np.concatenate([b.stats[name] for b in blocks], axis=1) for name in blocks[0].stats
    }
    return draws, stats


def assert_same(step, draws, stats, chains):
    for chain in chains:
        own_draws, own_stats = alone(step, generators()[chain], starts(step)[chain], TUNE + DRAWS)
        for name, values in own_draws.items():
            np.testing.assert_allclose(draws[name][chain], values, **ROUNDING, err_msg=name)
        for name, values in own_stats.items():
            if name != "warning":
                np.testing.assert_allclose(stats[name][chain], values, rtol=1e-8, err_msg=name)


@pytest.mark.slow(6)
@pytest.mark.parametrize(
    ("sampler", "settings"),
    [
        (sgm.MSGNHT_S, {}),
        (sgm.PSGLD, {"replacement": True, "step_size": sgm.PolynomialDecay(1e-3)}),
        (sgm.SGHMC_E, {"batch_size": None, "thin": 7}),
    ],
)
def test_each_chain_draws_what_it_draws_alone(sampler, settings):
    step = make_step(sampler, **settings)
    draws, stats = together(step)
    assert_same(step, draws, stats, range(CHAINS))
    assert len({tuple(chain[-1]) for chain in draws["w"]}) == CHAINS


def mixture_step():
    """Two samplers on one gradient, one of them on a simplex, and latent variables."""
    rng = np.random.default_rng(1)
    with pm.Model(coords={"obs": range(60)}):
        weights = pm.Dirichlet("weights", [2.0, 2.0])
        centre = pm.Normal("centre", [-1, 1], 2)
        z = pm.Categorical("z", weights, dims="obs")
        pm.Normal("y", centre[z], 1, observed=rng.normal(2 * rng.integers(2, size=60)), dims="obs")
        return sgm.Groups(
            [
                sgm.SGRLD.on([weights], step_size=1e-3),
                sgm.MSGNHT_S.on([centre], step_size=2e-3),
            ],
            batch_size=10,
            thin=7,
            latents=sgm.NeuralImportance(["z"], 3),
            compile_kwargs={"mode": "JAX"},
        )


@pytest.mark.long
def test_groups_simplexes_and_latents_beside_each_other(monkeypatch):
    step = mixture_step()
    draws, stats = together(step, 3)
    assert_same(step, draws, stats, range(3))
    # Means over a draw's updates too do not depend on how these are split into calls.
    monkeypatch.setattr(mapped_chains, "MAX_SECONDS_PER_CALL", 1e-9)
    monkeypatch.setattr(mapped_chains, "SECONDS_PER_CALL", 1e-9)
    monkeypatch.setattr(mapped_chains, "_power_of_two", lambda number: 4)
    _, parts = together(step, 3)
    assert np.ptp(parts["importance_ess"]) > 0
    for name, values in stats.items():
        np.testing.assert_array_equal(parts[name], values, err_msg=name)


@pytest.mark.slow(9)
@pytest.mark.parametrize("n_updates", [7, 10**9])
def test_threads_draw_what_each_chain_draws_alone(n_updates, monkeypatch):
    """On numba to the last bit, also where a draw takes several calls."""
    step = make_step(compile_kwargs={"mode": "NUMBA"})
    monkeypatch.setattr(CallLength, "took", lambda self, n, seconds: None)
    monkeypatch.setattr("pymc_sgmcmc.compiled_call_length.FIRST_CALL", n_updates)
    run = ThreadedChains(step, starts(step), generators(), TUNE, DRAWS)
    draws, stats = together(step, run=run)
    for chain in range(CHAINS):
        one = alone(step, generators()[chain], starts(step)[chain], TUNE + DRAWS)
        for found, own in zip((draws, stats), one, strict=True):
            for name, values in own.items():
                np.testing.assert_array_equal(found[name][chain], values, err_msg=name)


@pytest.mark.slow(7)
def test_a_chain_does_not_depend_on_those_beside_it(step):
    few, _ = together(step, 2)
    many, _ = together(step, 7)
    for name, values in few.items():
        np.testing.assert_allclose(values, many[name][:2], **ROUNDING)


@pytest.mark.slow(5)
def test_a_draw_in_several_calls_is_the_same(step, monkeypatch):
    whole, whole_stats = together(step)
    monkeypatch.setattr(mapped_chains, "MAX_SECONDS_PER_CALL", 1e-9)
    monkeypatch.setattr(mapped_chains, "SECONDS_PER_CALL", 1e-9)
    monkeypatch.setattr(mapped_chains, "_power_of_two", lambda number: 4)
    run = VectorizedChains(step, starts(step), generators(), TUNE, DRAWS)
    parts, parts_stats = together(step, run=run)
    assert run._updates_a_call == 4  # calls of 4, 4 and 2 updates
    for name, values in whole.items():
        np.testing.assert_array_equal(parts[name], values)
    for name, values in whole_stats.items():
        np.testing.assert_array_equal(parts_stats[name], values, err_msg=name)


@pytest.mark.slow(3)
def test_goes_on_from_a_saved_state_together_or_alone(step):
    draws, stats = together(step)
    run = VectorizedChains(step, starts(step), generators(), TUNE, DRAWS)
    blocks = run.run()
    drawn = next(blocks)
    blocks.close()
    points, states = run.saved(drawn)
    n_done = drawn.first + drawn.n
    assert n_done < TUNE + DRAWS
    again = VectorizedChains(step, starts(step), generators(), TUNE, DRAWS)
    again.restore(n_done, points, states)
    rest, _ = together(step, run=again)
    for name, values in rest.items():
        np.testing.assert_array_equal(values, draws[name][:, n_done:])
    step.setup_chain(np.random.default_rng(99), TUNE, DRAWS)
    step.sampling_state = states[2]
    point = points[2]
    for i in range(n_done, TUNE + DRAWS):
        point, [one] = step.step(point)
        assert one["n_updates"] == stats["n_updates"][2, i]
    for name, values in point.items():
        np.testing.assert_allclose(values, draws[name][2, -1], **ROUNDING)


def test_a_chain_that_fails_holds_and_leaves_the_others_alone():
    with pm.Model():
        x = pm.Flat("x", shape=2)
        pm.Potential("quartic", -(x**4).sum())
        step = sgm.SGLD(step_size=0.01, thin=5, compile_kwargs={"mode": "JAX"})
    start = [{"x": np.array([0.1 * c, 0.0])} for c in range(3)]
    far = [*start[:1], {"x": np.array([0.0, 1e4])}, *start[2:]]  # beyond where the step is stable

    def run(points):
        return together(step, run=VectorizedChains(step, points, generators(3), TUNE, DRAWS))

    (good, _), (bad, stats) = run(start), run(far)
    np.testing.assert_array_equal(bad["x"][[0, 2]], good["x"][[0, 2]])
    np.testing.assert_array_equal(bad["x"][1], np.broadcast_to(far[1]["x"], bad["x"][1].shape))
    assert stats["nonfinite"][1].all()
    assert not stats["nonfinite"][[0, 2]].any()
    assert np.isnan(stats["gradient_norm"][1]).all()
    assert np.isfinite(stats["gradient_norm"][[0, 2]]).all()
    [warning] = [w for w in stats["warning"].flat if w is not None]
    assert warning is stats["warning"][1, 0]
    # What the step itself says of it.
    step.setup_chain(generators(3)[1], TUNE, DRAWS)
    _, [own] = step.step(far[1])
    assert warning.message == own["warning"].message
    assert "'x' became non-finite at update" in warning.message


def test_a_chain_without_density():
    """Marked as the step marks it, though its gradient is finite."""
    with pm.Model():
        x = pm.Flat("x")
        pm.Potential("half", pt.switch(x > 0, -x, -np.inf))
        step = sgm.SGLD(
            step_size=1e-4,
            thin=5,
            initial_point={"x": np.array(1.0)},
            compile_kwargs={"mode": "JAX"},
        )
    points = [{"x": np.array(v)} for v in (5.0, -5.0, 9.0)]
    _, stats = together(step, run=VectorizedChains(step, points, generators(3), TUNE, DRAWS))
    np.testing.assert_array_equal(stats["nonfinite"].all(axis=1), [False, True, False])
    [warning] = [w for w in stats["warning"].flat if w is not None]
    assert "the log posterior became non-finite at update 4" in warning.message


@pytest.mark.slow(3)
def test_many_like_warnings_are_one(step, monkeypatch):
    monkeypatch.setattr(type(step.algorithm), "burn_in_warning", lambda *arguments: "beware")
    for n, told in [
        (MAX_WARNINGS, MAX_WARNINGS),
        (CHAINS, 1),
    ]:
        _, stats = together(step, run=VectorizedChains(step, starts(step, n), generators(n), 50, 5))
        warnings = [w for w in stats["warning"].flat if w is not None]
        assert len(warnings) == told
    assert warnings[0].message.endswith("beware (The same in 5 of 5 chains.)")


@pytest.mark.slow(4)
def test_calls_are_shortened_by_what_they_took_not_by_a_slow_reader(step):
    run = VectorizedChains(step, starts(step), generators(), 0, 100)
    list(run.run())
    run._room = run._draws_a_call = 64
    run._updates_a_call = step.thin
    call = mapped_chains.Call(0, 0, 64, 64, step.thin, np.ones((64, step.thin)), None)
    run._pace(call, 10.0, exact=False)
    assert run._draws_a_call == 64
    run._pace(call, 0.8, exact=True)
    assert run._draws_a_call == 64 * mapped_chains.SECONDS_PER_CALL / 0.8
    run._pace(call, 64 * 3.0, exact=True)  # a draw of three seconds is split
    assert run._updates_a_call < step.thin


@pytest.mark.slow(2)
def test_device_memory_does_not_grow_with_draws(step, monkeypatch):
    monkeypatch.setattr(mapped_chains, "BYTES_PER_CALL", 4 * CHAINS * 10 * 10 * 4)  # 4 draws
    run = VectorizedChains(step, starts(step), generators(), 0, 400)
    held = []
    for drawn in run.run():
        assert drawn.n <= 4
        held.append(sum(array.nbytes for array in jax.live_arrays()))
    assert max(held[-20:]) <= max(held[10:30])


@pytest.mark.long
def test_chains_over_several_devices(step, tmp_path):
    numbers = {8: 8, 12: 6}  # chains: devices, with as many chains on each
    script = f"""
        import sys
        import jax, numpy as np
        sys.path[:0] = {[HERE, os.path.dirname(HERE)]!r}
        from test_vectorized import VectorizedChains, generators, make_step, starts, together
        from test_vectorized import TUNE, DRAWS
        assert len(jax.devices()) == 8
        step = make_step()
        for n, n_devices in {numbers}.items():
            run = VectorizedChains(step, starts(step, n), generators(n), TUNE, DRAWS)
            draws, _ = together(step, run=run)
            assert len(run._stacked.carry.theta[0].sharding.device_set) == n_devices
            np.savez({str(tmp_path)!r} + f"/{{n}}.npz", **draws)
    """
    flags = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=flags, check=True)
    for n in numbers:
        saved = np.load(tmp_path / f"{n}.npz")
        draws, _ = together(step, n)
        for name, values in draws.items():
            np.testing.assert_allclose(saved[name], values, **ROUNDING)


def sample(step, **settings):
    settings = {"draws": DRAWS, "tune": TUNE, "chains": 3, "random_seed": 5} | settings
    settings |= {"progressbar": False, "compute_convergence_checks": False}
    return sgm.sample(step=step, model=step.model, **settings)


@pytest.mark.slow(2)
def test_sample_gives_the_same_as_one_chain_after_another(step):
    one_by_one = sample(step, chain_method="sequential", discard_tuned_samples=False)
    at_once = sample(step, chain_method="vectorized", discard_tuned_samples=False)
    assert at_once.children.keys() == one_by_one.children.keys()
    for group in ("posterior", "warmup_posterior", "sample_stats"):
        assert at_once[group].data_vars.keys() == one_by_one[group].data_vars.keys()
        for name, values in one_by_one[group].data_vars.items():
            other = at_once[group][name]
            assert (other.dims, other.dtype) == (values.dims, values.dtype)
            np.testing.assert_allclose(other, values, rtol=1e-8, err_msg=name)


@pytest.mark.slow(2)
def test_callback_sees_every_draw_of_every_chain(step):
    seen = []

    def callback(trace, draw):
        np.testing.assert_array_equal(trace.samples["w"][draw.draw_idx], draw.point["w"])
        seen.append((draw.chain, draw.draw_idx, draw.tuning, draw.is_last))

    sample(step, chain_method="vectorized", callback=callback)
    total = TUNE + DRAWS
    expected = [(c, i, i < TUNE, i == total - 1) for i in range(total) for c in range(3)]
    assert seen == expected


def test_interrupt_keeps_the_draws_of_all_chains(step):
    def interrupt(trace, draw):
        if draw.draw_idx == TUNE + 10:
            raise KeyboardInterrupt

    tree = sample(step, chain_method="vectorized", callback=interrupt)
    assert tree["posterior"].sizes["chain"] == 3
    assert tree["posterior"].sizes["draw"] == 11


def test_ctrl_c_ends_a_long_draw_in_threads():
    """A draw of hours is abandoned between two of its calls; those before it are kept."""
    step = make_step(step_size=1e-9, thin=100, compile_kwargs={"mode": "NUMBA"})

    def ctrl_c(trace, draw):
        step.thin = 10**9  # of the chains too, from the next draw on
        if draw.chain == 2:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()

    began = time.perf_counter()
    tree = sample(step, chain_method="vectorized", callback=ctrl_c, tune=0)
    assert time.perf_counter() - began < 60
    assert tree["posterior"].sizes == {"chain": 3, "draw": 1, "feature": 3}


def test_ctrl_c_keeps_the_draws_of_the_call_that_is_under_way(step):
    def ctrl_c(trace, draw):
        if draw.chain == 0 and draw.draw_idx == TUNE + 10:
            os.kill(os.getpid(), signal.SIGINT)

    tree = sample(step, chain_method="vectorized", callback=ctrl_c)
    assert tree["posterior"].sizes["chain"] == 3
    assert tree["posterior"].sizes["draw"] == 12


@pytest.mark.slow(3)
def test_resumes_from_a_store_bit_for_bit(step, tmp_path):
    settings = {"chain_method": "vectorized", "discard_tuned_samples": False}
    undisturbed = sample(step, **settings)
    store = tmp_path / "run.zarr"

    def interrupt(trace, draw):
        if draw.draw_idx == TUNE + 10:
            raise KeyboardInterrupt

    sample(step, trace=sgm.ZarrStore(store), callback=interrupt, **settings)
    resumed = sample(step, trace=sgm.ZarrStore(store), resume=True, **settings)
    for group in ("posterior", "warmup_posterior", "sample_stats"):
        for name, values in undisturbed[group].data_vars.items():
            np.testing.assert_array_equal(resumed[group][name], values, err_msg=name)


def climbing_step(mode):
    """A chain that gets to 1 has no density there: those that start high stop early."""
    with pm.Model():
        x = pm.Flat("x")
        pm.Potential("slope", pt.switch(x < 1, 100 * x, -np.inf))
        return sgm.SGLD(step_size=1e-3, thin=2, compile_kwargs={"mode": mode})


@pytest.mark.slow(5)
@pytest.mark.parametrize("mode", ["JAX", "NUMBA"])
def test_a_chain_that_stops_leaves_its_draws_out(mode, tmp_path, caplog):
    """As one chain after another: in memory, in a store, read at once or after resuming."""
    step = climbing_step(mode)
    starts = [{"x": v} for v in (-9.0, 0.0, 5.0, -1.0)]  # goes on, stops, has no density, stops
    settings = dict(chains=4, initvals=starts, tune=3, discard_tuned_samples=False)
    one_by_one = sample(step, chain_method="sequential", **settings)
    reasons = [r.message for r in caplog.records if "stopped" in r.message]
    assert len(reasons) == 3
    assert any("Chain 2 stopped at once" in reason for reason in reasons)
    assert 0 < one_by_one.posterior.sizes["draw"] <= DRAWS
    caplog.clear()

    def assert_like_one_by_one(tree):
        for group in ("posterior", "warmup_posterior", "sample_stats"):
            assert tree[group].sizes == one_by_one[group].sizes
            for name, values in one_by_one[group].data_vars.items():
                np.testing.assert_allclose(tree[group][name], values, rtol=1e-8, err_msg=name)
        assert sorted(reasons) == sorted(
            {r.message for r in caplog.records if "stopped" in r.message}
        )
        caplog.clear()

    settings["chain_method"] = "vectorized"
    assert_like_one_by_one(sample(step, **settings))
    path = tmp_path / "run.zarr"
    assert_like_one_by_one(sample(step, trace=path, **settings))
    counts = sgm.ZarrStore(path).n_draws
    assert counts[0] == DRAWS
    assert counts[2] == 0
    assert 0 < counts[1] < counts[3] < DRAWS
    assert_like_one_by_one(sample(step, trace=path, resume=True, **settings))
    interrupted = tmp_path / "interrupted.zarr"

    def interrupt(trace, draw):
        if draw.draw_idx == 20:
            raise KeyboardInterrupt

    sample(step, trace=interrupted, callback=interrupt, **settings)
    caplog.clear()
    assert_like_one_by_one(sample(step, trace=interrupted, resume=True, **settings))
    assert sgm.ZarrStore(interrupted).n_draws == counts


def test_default_on_jax_is_said(step, caplog):
    with caplog.at_level(logging.INFO, logger="pymc.sgmcmc"):
        sample(step)
    assert "chain_method='vectorized': 3 chains in one compiled call" in caplog.text


@pytest.mark.slow(3)
def test_what_cannot_be_vectorized_is_refused():
    model = regression()
    settings = {"step_size": 1e-3, "batch_size": 10, "model": model}
    python = {"compile_kwargs": {"mode": pytensor.compile.mode.Mode("py", "fast_compile")}}
    part = sgm.SGLD([model["w"]], **settings, **python)
    rest = sgm.SGLD([model["sigma"]], **settings, **python)
    with pytest.raises(ValueError, match="needs one minibatch step for all variables"):
        sgm.sample(DRAWS, chains=2, step=[part, rest], model=model, chain_method="vectorized")
    with pytest.raises(ValueError, match=r"leaves out 'sigma_log__'.*'parallel' or 'sequential'"):
        chains_together.check_step(part)
    with pytest.raises(ValueError, match="needs a step compiled for JAX or numba"):
        chains_together.check_step(sgm.SGLD(**settings, **python))
