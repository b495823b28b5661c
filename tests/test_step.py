"""The step as a citizen of PyMC: points, statistics, seeds, saved state, failures."""

import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.step_methods.compound import Competence
from pymc.step_methods.state import equal_dataclass_values
from pytensor.compile.mode import Mode

import pymc_sgmcmc as sgm
from pymc_sgmcmc.loop import Loop
from tests.samplers import SAMPLERS, THERMOSTATS, UNCONSTRAINED
from tests.targets import DirichletCategorical

RUN = dict(progressbar=False, compute_convergence_checks=False)
JAX = {"mode": "JAX"}
NUMBA = {"mode": "NUMBA"}
PYTHON = Mode("py", "minimum_compile")
"""Graphs as they are written, which takes least where a step makes a few updates."""
SIMPLIFIED = {"mode": "FAST_COMPILE"}
"""Without the checks of parameters, which would raise an error where an update diverges."""


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """What PyMC compiles by itself is not numba's to compile."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


def make_step(model, sampler=sgm.MSGNHT_S, **options):
    """What is true of a step is so on all backends; those tests that need one say which."""
    options = {"compile_kwargs": {"mode": PYTHON}} | options
    options = {"step_size": 0.01, "batch_size": 20, "thin": 7} | options
    with model:
        return sampler(**options)


def sample(model, step, **options):
    options = {"draws": 20, "tune": 5, "chains": 2, "cores": 1, "random_seed": 3} | RUN | options
    with model:
        return pm.sample(step=step, **options)


@pytest.mark.slow(43)
def test_draws_depend_on_the_seed_alone(regression):
    """Same seed, same draws: whatever cores, number of chains, or earlier use of the step."""
    step = make_step(regression)
    first = sample(regression, step).posterior
    again = sample(regression, step, chains=3).posterior
    parallel = sample(regression, step, cores=2, mp_ctx="fork").posterior
    other_seed = sample(regression, step, random_seed=4).posterior
    for name in ["w", "b", "sigma"]:
        np.testing.assert_array_equal(first[name], again[name][:2])
        np.testing.assert_array_equal(first[name], parallel[name])
        assert not np.array_equal(first[name], other_seed[name])
        assert not np.array_equal(first[name][0], first[name][1])


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    ("sampler", "options", "mode"),
    [
        (sgm.MSGNHT_S, {}, "NUMBA"),
        (sgm.PSGLD, {}, "JAX"),
        (sgm.SGNHT, {"replacement": True}, "JAX"),
        pytest.param(sgm.MSGNHT_S, {}, "JAX", marks=pytest.mark.long),
        pytest.param(sgm.PSGLD, {}, "NUMBA", marks=pytest.mark.long),
        pytest.param(sgm.SGNHT, {"replacement": True}, "NUMBA", marks=pytest.mark.long),
        pytest.param(sgm.MSGNHT_S, {}, "CVM", marks=pytest.mark.long),
    ],
)
def test_restored_state_goes_on_identically(regression, sampler, options, mode):
    """Saved after any draw, all further draws are the same; a pickled step carries its state."""
    step = make_step(regression, sampler, compile_kwargs={"mode": mode}, **options)
    step.setup_chain(np.random.default_rng(5), tune=0, draws=10)
    point = regression.initial_point()
    for _ in range(4):
        point, _ = step.step(point)
    saved = pickle.loads(pickle.dumps(step.sampling_state))

    def go_on(step):
        current, draws = point, []
        for _ in range(4):
            current, [stats] = step.step(current)
            draws.append([*current.values(), stats["potential"], stats["n_updates"]])
        return draws

    expected = go_on(step)
    step.setup_chain(np.random.default_rng(99), tune=0, draws=10)
    step.sampling_state = saved
    assert equal_dataclass_values(step.sampling_state, saved)
    restored = go_on(step)
    step.sampling_state = saved
    unpickled = go_on(cloudpickle.loads(cloudpickle.dumps(step)))
    for a, b, c in zip(expected, restored, unpickled, strict=True):
        for x, y, z in zip(a, b, c, strict=True):
            np.testing.assert_array_equal(x, y)
            np.testing.assert_array_equal(x, z)


@pytest.mark.slow(2)
@pytest.mark.parametrize("sampler", UNCONSTRAINED, ids=lambda s: s.name)
def test_thin_leaves_out_draws_and_changes_nothing_else(regression, sampler):
    """Momentum, thermostat and so on are carried from draw to draw as from update to update.

    The gradient's norm is the mean over a draw's updates, the other statistics are of its last.
    """

    def draws(thin, n):
        options = {"thin": thin, "self_check": False, "compile_kwargs": {"mode": PYTHON}}
        step = make_step(regression, sampler.step, **options, **sampler.noisy_settings)
        step.setup_chain(np.random.default_rng(5), tune=0, draws=n)
        point, points, statistics = regression.initial_point(), [], []
        for _ in range(n):
            point, [stats] = step.step(point)
            points.append([*point["w"], point["b"]])
            statistics.append([stats.pop("gradient_norm"), *stats.values()])
        return np.array(points), statistics

    (every_second, short), (every_sixth, long) = draws(2, 6), draws(6, 2)
    np.testing.assert_array_equal(every_second[2::3], every_sixth)
    norms = np.array([norm for norm, *_ in short]).reshape(2, 3)
    assert np.ptp(norms, axis=1).min() > 0
    np.testing.assert_allclose(norms.mean(axis=1), [norm for norm, *_ in long], rtol=1e-12)
    assert [rest for _, *rest in short[2::3]] == [rest for _, *rest in long]


@pytest.mark.slow(2)
def test_state_is_plain(regression):
    """Arrays, numbers, strings and containers of them: nothing that needs pickle to store."""

    def plain(value):
        if isinstance(value, dict):
            return all(map(plain, value.values()))
        if isinstance(value, list):
            return all(map(plain, value))
        return value is None or isinstance(value, np.ndarray | np.generic | int | float | str)

    step = make_step(regression, compile_kwargs=JAX)
    step.step(regression.initial_point())
    state = step.sampling_state
    assert plain([state.sampler_state, state.batch_states, state.noise_state])
    assert set(state.sampler_state) == {"p", "xi"}


@pytest.mark.slow(3)
def test_state_of_another_step_is_refused(regression):
    step = make_step(regression)
    other = make_step(regression, vars=[regression["w"]], compile_kwargs={"mode": PYTHON})
    saved = other.sampling_state
    with pytest.raises(ValueError, match="var_names"):
        step.sampling_state = saved


@pytest.mark.slow(2)
def test_point_contract(regression):
    """A new dict with the same order of keys and fresh arrays; the old one untouched."""
    step = make_step(regression)
    before = regression.initial_point()
    copy = {name: value.copy() for name, value in before.items()}
    after, _ = step.step(before)
    assert list(after) == list(before)
    assert after is not before
    for name, value in before.items():
        np.testing.assert_array_equal(value, copy[name])
        assert not np.shares_memory(after[name], value)
        assert after[name].dtype == value.dtype
        assert after[name].shape == value.shape
    later, _ = step.step(after)
    assert not any(np.shares_memory(later[name], after[name]) for name in after)


@pytest.mark.slow(3)
@pytest.mark.parametrize(
    ("sampler", "mode"),
    [(s, PYTHON) for s in SAMPLERS] + [(SAMPLERS[-1], "JAX"), (THERMOSTATS[-1], "JAX")],
    ids=lambda value: getattr(value, "name", "PYTHON" if value is PYTHON else value),
)
def test_statistics(regression, sampler, mode):
    """Scalars, always there, none that is reserved for HMC."""
    model = DirichletCategorical().rows() if sampler.kind == "simplex" else regression
    own = {"kinetic_temperature"} if sampler.has_momentum else set()
    own |= {"thermostat"} if sampler.kind == "thermostat" else set()
    options = {"self_check": False, "compile_kwargs": {"mode": mode}}
    step = make_step(model, sampler.step, **options, **sampler.noisy_settings)
    common = {"step_size", "potential", "gradient_norm", "nonfinite", "n_updates", "warning"}
    assert set(step.stats_dtypes_shapes) == common | own
    _, [stats] = step.step(model.initial_point())
    assert set(stats) == common | own
    assert all(np.ndim(value) == 0 for value in stats.values())
    stats = sample(model, step).sample_stats
    assert set(stats.data_vars) == (common | own) - {"warning"}
    assert not {"diverging", "energy", "acceptance_rate", "lp"} & set(stats.data_vars)
    np.testing.assert_array_equal(stats["n_updates"][0], 7 * np.arange(6, 26))
    assert (stats["step_size"] == 0.01).all()


def test_potential_estimates_minus_log_posterior(regression):
    """With all data at each update it is exact, and so is the norm of the gradient."""
    options = {"batch_size": None, "thin": 1, "step_size": 1e-4}
    step = make_step(regression, sgm.SGLD, compile_kwargs={"mode": PYTHON}, **options)
    before = regression.initial_point()
    after, [stats] = step.step(before)
    np.testing.assert_allclose(stats["potential"], -regression.compile_logp(mode=PYTHON)(after))
    gradient = regression.compile_dlogp(mode=PYTHON)(before)
    np.testing.assert_allclose(stats["gradient_norm"], np.sqrt(np.sum(gradient**2)))


@pytest.mark.slow(2)
def test_thin_in_several_calls_is_the_same_chain(regression):
    """Splitting a long call changes nothing: noise and batches go on where they were."""
    step = make_step(regression, thin=12)

    def run(updates_per_call):
        step.setup_chain(np.random.default_rng(1), tune=0, draws=3)
        step.chain.call_length.n_updates = updates_per_call
        step.chain.call_length.took = lambda n, seconds: None
        point = regression.initial_point()
        for _ in range(3):
            point, [stats] = step.step(point)
        return [*point.values(), stats["potential"], stats["n_updates"]]

    for x, y in zip(run(12), run(5), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


@pytest.mark.slow(2)
def test_long_calls_are_shortened(regression):
    """After ten seconds for 100 updates calls have 4; fast ones run all of ``thin`` at once."""
    step = make_step(regression, thin=1000)
    step.setup_chain(np.random.default_rng(0), 0, 0)
    pace = step.chain.call_length
    assert pace.n_updates == 100
    pace.took(100, 30.0)  # the first of its length may have compiled: not judged
    assert pace.n_updates == 100
    pace.took(100, 10.0)
    assert pace.n_updates == 4  # the largest power of two below 5
    pace.took(4, 0.001)
    pace.took(4, 0.001)
    assert pace.n_updates == 1000
    pace.took(1000, 0.1)
    pace.took(1000, 0.1)
    assert pace.n_updates == 1000


@pytest.mark.slow(3)
def test_interrupt_of_a_long_draw_keeps_those_before():
    """Ctrl-C in pm.sample, in a draw that would take minutes, is heard at the end of a call.

    Draws of 100 updates, so that there are some to keep, then one of ten million.
    """
    with pm.Model() as model:
        pm.Normal("w", shape=1000)
    step = make_step(model, sgm.SGLD, batch_size=None, thin=100, compile_kwargs=JAX)
    sent = []

    def interrupt():
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    def lengthen(trace, draw):
        if draw.draw_idx == 4:
            step.thin = step.chain.call_length.longest = 10**7
            threading.Timer(1.5, interrupt).start()

    part = sample(model, step, tune=0, draws=100, chains=1, callback=lengthen)
    # a call takes half a second, after a second or two that compiles its length
    assert time.perf_counter() - sent[0] < 5
    assert part.posterior["w"].shape == (1, 5, 1000)


def resident(which):
    """Memory of this process in MB: "VmRSS" now, "VmHWM" the most since it was last reset."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith(which))
    return int(line.split()[1]) / 1024


@pytest.mark.slow(3)
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux")
def test_memory_does_not_grow_with_the_updates():
    """One draw of 100,000 updates in a single call, against one of 1,000.

    A call takes and gives a row, a step size, a squared gradient and a norm for each, some of
    them twice: under 8 MB. The norms are held as Python floats, 32 bytes each, until the draw
    ends: 3.2 MB. One variable's path alone would be 80 MB.
    """
    y = np.random.default_rng(0).normal(size=(20, 100))
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("w", shape=100), 1, observed=y)
    step = make_step(model, step_size=1e-3, batch_size=1, compile_kwargs=JAX)
    step.chain.call_length.took = lambda n_updates, seconds: None
    point, grown = model.initial_point(), []
    for thin in (1_000, 100_000):
        step.thin = step.chain.call_length.n_updates = thin
        step.step(point)  # compiles
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = resident("VmRSS")
        step.step(point)
        grown.append(resident("VmHWM") - before)
    assert grown[1] - grown[0] < 16, grown


def test_competence_and_defaults():
    assert sgm.SGLD.competence(None, True) == Competence.INCOMPATIBLE
    assert sgm.SGLD not in pm.step_methods.STEP_METHODS
    assert sgm.MSGNHT_S.default_tune_steps == 500


def test_signature_tells_all_arguments():
    import inspect

    parameters = inspect.signature(sgm.MSGNHT_S).parameters
    assert list(parameters)[:3] == ["vars", "step_size", "diffusion"]
    assert parameters["diffusion"].default == 1.0
    for name in ["batch_size", "thin", "compile_kwargs"]:
        assert name in parameters
        assert f"{name} : " in sgm.MSGNHT_S.__doc__
    with pm.Model():
        pm.Normal("x")
        with pytest.raises(TypeError, match=r"SGLD has no argument 'diffusion'"):
            sgm.SGLD(step_size=0.1, diffusion=1.0)


@pytest.mark.slow(3)
@pytest.mark.parametrize("mode", ["NUMBA", "JAX"])
def test_backend_of_pm_sample(regression, mode):
    """It is for the steps that PyMC makes: one that exists already keeps its own, and its draws."""
    step = make_step(regression, compile_kwargs={"mode": mode})
    alone = sample(regression, step, draws=5).posterior
    for options in ({"backend": mode.lower()}, {"compile_kwargs": {"mode": PYTHON}}):
        beside = sample(regression, step, draws=5, **options).posterior
        np.testing.assert_array_equal(beside["w"], alone["w"])


@pytest.mark.slow(20)
def test_compound_with_other_steps(regression):
    """With NUTS, Metropolis and a second minibatch step: each moves its own variables only."""
    w, b, sigma = regression["w"], regression["b"], regression["sigma"]
    with regression:
        steps = [
            sgm.MSGNHT_S([w], step_size=0.01, batch_size=20, thin=10, compile_kwargs=NUMBA),
            sgm.SGLD([b], step_size=1e-4, batch_size=20, thin=10, compile_kwargs=JAX),
            pm.Metropolis([sigma]),
        ]
    idata = sample(regression, steps, draws=300, tune=200)
    for name in ["w", "b", "sigma"]:
        assert float(idata.posterior[name].std()) > 0.01
    assert abs(float(idata.posterior["sigma"].mean()) - 1) < 0.3
    with regression:
        steps = [
            sgm.MSGNHT_S([w, b], step_size=0.01, batch_size=20, thin=10, compile_kwargs=JAX),
            pm.NUTS([sigma]),
        ]
    idata = sample(regression, steps, draws=100, tune=100)
    assert abs(float(idata.posterior["sigma"].mean()) - 1) < 0.3
    assert "diverging" in idata.sample_stats
    az.plot_trace_dist(idata, backend="none")


@pytest.mark.slow(2)
def test_callback_var_names_initvals(regression):
    step, seen = make_step(regression), []
    idata = sample(
        regression,
        step,
        tune=0,
        draws=3,
        callback=lambda trace, draw: seen.append(draw.draw_idx),
        var_names=["b"],
        initvals={"b": 2.5},
    )
    assert seen == [0, 1, 2, 0, 1, 2]
    assert list(idata.posterior.data_vars) == ["b"]
    assert abs(float(idata.posterior["b"][0, 0]) - 2.5) < 1


@pytest.mark.slow(3)
@pytest.mark.parametrize("chains", [1, 2])
def test_progress_bar_shows_and_starts_with_numbers(regression, chains):
    step = make_step(regression)
    columns, start = step._progressbar_config(chains)
    [update] = step._make_progressbar_update_functions()
    _, [stats] = step.step(regression.initial_point())
    shown = update(stats)
    assert {"step_size", "kinetic_temperature", "gradient_norm", "failing"} == set(shown)
    for column in columns:
        for values in ({k: v[0] for k, v in start.items()}, shown):

            class Task:
                fields = values

            assert column.text_format.format(task=Task)
    sample(regression, step, chains=chains, progressbar="combined+stats")
    sample(regression, step, chains=chains, progressbar=True)


@pytest.mark.slow(2)
def test_new_data_is_read_at_the_start_of_a_chain(regression_data):
    X, y = regression_data
    with pm.Model() as model:
        features = pm.Data("X", X)
        target = pm.Data("target", y)
        w = pm.Normal("w", 0, 3, shape=2)
        pm.Normal("y", features @ w, 1, observed=target)
    step = make_step(model, step_size=0.02, thin=20, compile_kwargs=JAX)
    with model:
        pm.set_data({"X": X[:100], "target": -5 * X[:100, 0]})
    step.setup_chain(np.random.default_rng(0), 0, 0)
    assert step.chain.batches[0].n_rows == 100
    idata = sample(model, step, draws=100, tune=100)
    assert abs(float(idata.posterior["w"][..., 0].mean()) + 5) < 0.2
    with model:
        pm.set_data({"X": X[:10], "target": y[:10]})
    with pytest.raises(ValueError, match=r"batch_size=20 .* 10"):
        step.setup_chain(np.random.default_rng(0), 0, 0)


@pytest.mark.slow(2)
def test_nonfinite_update_loses_nothing(regression, caplog):
    """A step size far too large: the run ends, finite points are held, one warning names it all."""

    def explode_late(update):
        return 0.01 if update < 7 * 15 else 1e12

    step = make_step(regression, step_size=explode_late, compile_kwargs=SIMPLIFIED)
    with caplog.at_level(logging.ERROR, logger="pymc"):
        idata = sample(regression, step, tune=5, draws=20)
    values, bad = idata.posterior["b"].values, idata.sample_stats["nonfinite"].values
    assert np.isfinite(values).all()
    assert bad[:, :10].sum() == 0
    assert bad[:, 10:].all()
    for chain in range(2):
        assert (values[chain, 10:] == values[chain, 9]).all()
    warnings = [r.getMessage() for r in caplog.records if "non-finite" in r.getMessage()]
    assert len(warnings) == 2
    for text in ("MSGNHT_S", "1e+12", "update 10", "smaller step_size"):
        assert text in warnings[0]
    assert any(f"'{v.name}' became non-finite" in warnings[0] for v in step.vars)


def test_warning_names_the_variable_the_update_and_its_step_size():
    """The second of two variables, at the fourth of a draw's updates: the gradient after a leap."""
    with pm.Model() as model:
        pm.Normal("calm")
        steep = pm.Normal("steep")
        pm.Potential("wall", -pt.exp(steep**2))
    step = make_step(
        model,
        sgm.SGLD,
        step_size=lambda update: 1e-3 if update < 10 else 1e5 + 1000 * update,
        batch_size=None,
        thin=4,
        compile_kwargs={"mode": PYTHON},
    )
    point, said = model.initial_point(), []
    step.setup_chain(np.random.default_rng(1), tune=0, draws=5)
    for _ in range(5):
        point, [stats] = step.step(point)
        said.append(stats["warning"])
    assert [warning is not None for warning in said] == [False, False, True, False, False]
    expected = {"variable": "steep", "name": "'steep'", "update": 11, "step_size": 111000.0}
    assert said[2].extra == expected
    assert said[2].step == 11
    for text in ("SGLD", "'steep' became non-finite at update 11", "step size 1.11e+05"):
        assert text in said[2].message


@pytest.mark.slow(2)
def test_a_bad_start_of_a_chain_is_an_error(regression):
    """Nothing finite could be held: the step itself was made at another point."""
    step = make_step(regression, compile_kwargs=SIMPLIFIED)
    with pytest.raises(pm.exceptions.SamplingError, match=r"'w' \(at 1\).*'y' \(at 0, 1, 2\)"):
        sample(regression, step, initvals={"w": np.array([0, np.inf])})


def test_points_without_density_are_marked(regression):
    """Where data is impossible the gradient may well be finite: 0 for a Bernoulli's y = 2."""
    labels = np.arange(60) % 2
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Bernoulli("y", logit_p=mu, observed=pm.Data("labels", labels))
    step = make_step(model, sgm.SGLD, step_size=1e-4, compile_kwargs={"mode": "CVM"})
    point = {"mu": np.zeros(())}
    labels[:] = 2
    with model:
        pm.set_data({"labels": labels})
    step.setup_chain(np.random.default_rng(3), 0, 0)
    with pytest.raises(pm.exceptions.SamplingError, match=r"'y' .*impossible"):
        step.step(point)
    step.chain.n_updates = 7  # not at its beginning, so that the chain goes on
    moved, [stats] = step.step(point)
    assert stats["nonfinite"]
    assert "the log posterior became non-finite at update 13" in stats["warning"].message
    assert moved == point


@pytest.mark.slow(2)
def test_chain_goes_on_after_it_left_all_sense(regression):
    """One huge update: theta and thermostat are finite still, but would never come back."""
    step = make_step(
        regression,
        step_size=lambda update: 1e12 if update == 10 else 1e-3,
        thin=1,
        compile_kwargs=SIMPLIFIED,
    )
    point, bad, xi = regression.initial_point(), [], []
    step.setup_chain(np.random.default_rng(3), 0, 0)
    for _ in range(30):
        point, [stats] = step.step(point)
        bad.append(stats["nonfinite"])
        xi.append(stats["thermostat"])
    assert np.flatnonzero(bad).tolist() == [10]
    assert np.nanmax(np.abs(xi)) < 10
    assert np.abs(point["w"]).max() < 10


@pytest.fixture(scope="module")
def smallest():
    """A model of one parameter."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=np.linspace(-1, 1, 100))
    return model


@pytest.mark.parametrize("sampler", [sgm.MSGNHT_S, sgm.SGNHT, sgm.SGHMC_S, sgm.SGLD, sgm.PSGLD])
@pytest.mark.parametrize("asked", ["auto", True, False])
def test_order_of_batches_suits_the_sampler(smallest, sampler, asked):
    """Independent rows for a thermostat, shuffled epochs for others, unless one is asked for."""
    options = {"replacement": asked, "self_check": False, "compile_kwargs": {"mode": PYTHON}}
    step = make_step(smallest, sampler, **options)
    independent = sampler in (sgm.MSGNHT_S, sgm.SGNHT) if asked == "auto" else asked
    assert step.replacement == independent
    assert ("replacement=True" in repr(step)) == independent
    of_all_rows = make_step(smallest, sampler, **options | {"batch_size": None})
    assert of_all_rows.replacement == (asked is True)


def test_shuffled_epochs_do_not_go_with_adaptation(regression):
    with pytest.raises(ValueError, match=r"replacement=False and adaptation: .*Leave replacement"):
        make_step(regression, step_size="auto", thin="auto", replacement=False)


@pytest.mark.slow(4)
def test_a_thermostat_by_hand_has_the_right_variance():
    """A conjugate normal: of 20 means the variance, by batches of 137 of 1370 rows, h = 0.15 sd.

    With shuffled epochs it is 0.7 of the right one. Draws 40 updates apart are nearly independent:
    the standard error is that of 2 x 400 draws of 20 elements, sqrt(2 / 20 / 800) = 0.011.
    """
    y = np.random.default_rng(1).normal(size=(1370, 20))
    sd = len(y) ** -0.5
    with pm.Model() as model:
        mu = pm.Flat("mu", shape=20)
        pm.Normal("y", mu, 1, observed=y)
        step = sgm.MSGNHT_S(step_size=0.15 * sd, batch_size=137, thin=40, compile_kwargs=JAX)
    draws = sample(model, step, draws=400, tune=600, initvals={"mu": y.mean(axis=0)}).posterior
    variance = np.square((draws["mu"].values - y.mean(axis=0)) / sd).mean()
    assert abs(variance - 1) < 4 * 0.011


@pytest.mark.slow(3)
@pytest.mark.parametrize(
    ("options", "cautioned"),
    [({"step_size": 0.02, "replacement": False}, True), ({"step_size": 0.02}, False),
     ({"step_size": 1e-4, "replacement": False}, False)],
)  # fmt: skip
def test_shuffled_epochs_that_deceive_a_thermostat_are_told(regression, caplog, options, cautioned):
    """Noise that cancels over an epoch but is damped at each update makes posteriors narrow."""
    step = make_step(regression, batch_size=2, compile_kwargs=JAX, **options)
    with caplog.at_level(logging.WARNING, logger="pymc"):
        sample(regression, step, tune=60, draws=10, initvals={"w": [1.0, -0.5], "b": 0.3})
    told = [r.getMessage() for r in caplog.records if "replacement=True" in r.getMessage()]
    assert len(told) == (2 if cautioned else 0)


@pytest.mark.slow(2)
def test_kept_draws_survive_an_error(regression):
    step = make_step(regression)

    def unlucky(trace, draw):
        if draw.chain == 1 and draw.draw_idx == 12:
            raise OSError("disk full")

    with regression:
        kept = sgm.KeptDraws()
    with pytest.raises(OSError, match="disk full"):
        sample(regression, step, trace=kept, callback=unlucky)
    idata = kept.to_inference_data()
    full = sample(regression, step)
    assert idata.posterior["w"].shape == (2, 8, 2)  # 13 recorded, 5 of them tuning
    np.testing.assert_array_equal(idata.posterior["w"], full.posterior["w"][:, :8])
    assert "potential" in idata.sample_stats
    complete = sample(regression, step, trace=kept)
    np.testing.assert_array_equal(complete.posterior["w"], full.posterior["w"])
    np.testing.assert_array_equal(kept.to_inference_data().posterior["w"], full.posterior["w"])


def test_kept_draws_without_any(regression):
    with regression:
        kept = sgm.KeptDraws()
    with pytest.raises(ValueError, match="No chain got past tuning"):
        kept.to_inference_data()


def test_data_is_pickled_once():
    X = np.random.default_rng(0).normal(size=(100_000, 5))
    with pm.Model() as model:
        w = pm.Normal("w", shape=5)
        pm.Normal("y", pm.Data("X", X) @ w, 1, observed=X.sum(axis=1))
    step = make_step(model, self_check=False, compile_kwargs={"mode": PYTHON})
    assert len(cloudpickle.dumps(step)) < 1.2 * (X.nbytes + X[:, 0].nbytes)


SCRIPT = """
    import numpy as np, pymc as pm, pymc_sgmcmc as sgm

    def main():
        rng = np.random.default_rng(0)
        X = rng.normal(size=(100, 2))
        with pm.Model():
            w = pm.Normal("w", shape=2)
            pm.Normal("y", pm.Data("X", X) @ w, 1, observed=X @ [1, 2])
            step = sgm.MSGNHT_S(
                step_size=0.01, batch_size=10, thin=5, compile_kwargs={"mode": "%(mode)s"}
            )
            run = dict(step=step, draws=10, tune=5, chains=2, random_seed=1, progressbar=False,
                       compute_convergence_checks=False)
            here = pm.sample(cores=1, **run)
            there = pm.sample(cores=2, mp_ctx="%(method)s", **run)
            np.testing.assert_array_equal(here.posterior["w"], there.posterior["w"])
            print("IDENTICAL under %(method)s")

    if __name__ == "__main__":
        main()
"""


def run_script(tmp_path, mode, method):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT % {"mode": mode, "method": method}))
    return subprocess.run(
        [sys.executable, str(path)],
        env=os.environ | {"PYTENSOR_FLAGS": f"{os.environ['PYTENSOR_FLAGS']},mode=FAST_COMPILE"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("mode", "method"),
    [("NUMBA", "forkserver"), ("JAX", "spawn")],
)
@pytest.mark.long
def test_worker_processes_give_the_same_draws(tmp_path, mode, method):
    result = run_script(tmp_path, mode, method)
    assert f"IDENTICAL under {method}" in result.stdout, result.stderr


@pytest.mark.long
@pytest.mark.parametrize("mode", ["CVM"])
def test_c_linker_in_forked_processes(regression, mode):
    step = make_step(regression, compile_kwargs={"mode": mode})
    here = sample(regression, step).posterior
    there = sample(regression, step, cores=2, mp_ctx="fork").posterior
    for name in ["w", "b", "sigma"]:
        np.testing.assert_array_equal(here[name], there[name])


@pytest.mark.slow(7)
def test_jax_under_fork_is_refused_not_hung(tmp_path):
    result = run_script(tmp_path, "JAX", "fork")
    assert result.returncode != 0
    assert "mp_ctx='forkserver'" in result.stderr


@pytest.mark.slow(3)
def test_jax_data_stays_on_the_device(regression):
    """Between calls nothing of the data is copied: the same device arrays are passed again."""
    import jax

    step = make_step(regression, compile_kwargs=JAX)
    step.step(regression.initial_point())
    constants = list(step.kernel.constants)
    assert all(isinstance(c, jax.Array) for c in constants)
    step.step(regression.initial_point())
    assert all(a is b for a, b in zip(constants, step.kernel.constants, strict=True))
    assert all(isinstance(a, jax.Array) for arrays in step.chain.state.values() for a in arrays)


@pytest.mark.slow(3)
def test_one_compilation_serves_all_chains(regression, monkeypatch):
    compiled = []
    original = Loop.__init__
    monkeypatch.setattr(Loop, "__init__", lambda *a: (compiled.append(1), original(*a))[1])
    step = make_step(regression)
    sample(regression, step)
    sample(regression, step, chains=1)
    assert len(compiled) == 1


@pytest.mark.slow(2)
def test_process_id_is_that_of_this_process(regression):
    assert make_step(regression).kernel._process == os.getpid()


@pytest.mark.slow(5)
def test_its_model_is_sampled_as_it_is():
    """Effects of groups and missing outcomes are parameters of a step, not of the default call."""
    group = np.arange(60) % 20
    y = np.where(group == 3, np.nan, np.linspace(-1, 1, 60))
    with pm.Model():
        tau = pm.HalfNormal("tau")
        a = pm.Normal("a", 0, tau, shape=20)
        with pytest.warns(pm.exceptions.ImputationWarning):
            pm.Normal("y", a[group], 1, observed=y)
        step = sgm.MSGNHT_S(step_size=0.01, compile_kwargs=SIMPLIFIED)
        assert {v.name for v in step.vars} == {"tau_log__", "a", "y_unobserved"}
        with pytest.raises(ValueError, match=r"'y' has masked \(missing\) values"):
            sgm.MSGNHT_S(step_size=0.01, batch_size=10, compile_kwargs=SIMPLIFIED)
