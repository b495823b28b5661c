"""sgm.sample: the same result as pm.sample, wherever chains run, and nothing lost when they end."""

import inspect
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import FrozenInstanceError, fields

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from kills import MODE, same, small_model, small_step
from pymc.exceptions import SamplingError
from pymc.util import get_state_from_generator
from pytensor.link.jax.linker import JAXLinker

import pymc_sgmcmc as sgm
from pymc_sgmcmc import pymc_sampler_interface, run_chains
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.pymc_sampler_interface import StepSampler
from pymc_sgmcmc.run import (
    log_densities,
    parametrisation,
    progress,
    result,
    sequential,
    step_of_run,
)
from pymc_sgmcmc.run.recorder import recorder_of
from pymc_sgmcmc.run.sample_arguments import Arguments

RUN = dict(
    draws=25,
    tune=5,
    random_seed=1,
    chain_method="sequential",
    compute_convergence_checks=False,
    quiet=True,
)
METHODS = [{"chain_method": "sequential"}, {"chain_method": "parallel", "cores": 2}]


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """What PyMC compiles by itself, its recorder among it, is not numba's to compile."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture(scope="module")
def model(quick_compilation):
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = X @ [1.0, -0.5] + 0.1
    with pm.Model(coords={"obs": np.arange(60), "feature": ["a", "b"]}) as model:
        data = pm.Data("X", X, dims=("obs", "feature"))
        w = pm.Normal("w", 0, 3, dims="feature")
        s = pm.HalfNormal("s", 2)
        pm.Deterministic("ratio", w[0] / s)
        pm.Deterministic("fitted", data @ w, dims="obs")
        pm.Normal("y", data @ w, s, observed=y, dims="obs")
    return model


@pytest.fixture(scope="module")
def step(model):
    return small_step(model)


def sample(model, step, **options):
    with model:
        return sgm.sample(step=step, **(RUN | options))


def test_arguments_are_those_of_pm_sample():
    """Names, order and defaults; what is not there would have nothing to do."""
    theirs = inspect.signature(pm.sample).parameters
    ours = inspect.signature(sgm.sample).parameters
    without = {
        # choices of NUTS, deprecated arguments, and what a step that exists does not hear
        "nuts_sampler", "jitter_max_retries", "n_init", "return_inferencedata",
        "nuts_sampler_kwargs", "backend", "kwargs",
    }  # fmt: skip
    own = {"chain_method", "client", "resume", "include_data"}
    own |= {"ess", "max_passes", "max_seconds", "store_adaptation", "predictions", "integrate"}
    own |= {"exact", "data", "adaptation"}
    assert theirs.keys() - ours.keys() == without
    assert ours.keys() - theirs.keys() == own
    shared = [name for name in ours if name in theirs]
    assert shared == [name for name in theirs if name in ours]
    changed = {name for name in shared if ours[name].default != theirs[name].default}
    assert changed == {"draws", "init"}
    assert [p.kind for p in ours.values()] == [
        theirs[n].kind if n in theirs else inspect.Parameter.KEYWORD_ONLY for n in ours
    ]
    for name in ours:
        assert f"\n{name} : " in inspect.getdoc(sgm.sample)


def test_arguments_have_the_defaults_of_the_signature():
    defaults = {n: p.default for n, p in inspect.signature(sgm.sample).parameters.items()}
    assert {field.name: field.default for field in fields(Arguments)} == defaults


@pytest.mark.parametrize("given", [True, False])
def test_interface_of_external_samplers(model, step, given, monkeypatch):
    """`StepSampler` takes what PyMC proposes to pass, and gives the draws of `sample`."""
    proposed = {
        "model", "draws", "tune", "chains", "cores", "initvals", "random_seed", "progressbar",
        "quiet", "discard_tuned_samples", "keep_warning_stat", "var_names", "idata_kwargs",
        "compute_convergence_checks", "compile_kwargs",
    }  # fmt: skip
    parameters = inspect.signature(StepSampler.sample_from_init).parameters
    assert parameters.keys() - {"self"} == proposed
    ours = sample(model, step, chains=2, init="point", var_names=["w", "s"])
    generators = np.random.default_rng(RUN["random_seed"]).spawn(2)
    for rng in generators:  # `sample` has used a number of each for its start
        rng.integers(2**30)
    made = []
    monkeypatch.setattr(
        pymc_sampler_interface, "default_step", lambda *arguments: made.append(arguments) or step
    )
    sampler = StepSampler(step if given else None, chain_method="sequential")
    found = sampler.sample_from_init(
        model=model,
        draws=RUN["draws"],
        tune=RUN["tune"],
        chains=2,
        cores=1,
        initvals=[model.initial_point()] * 2,
        random_seed=[get_state_from_generator(rng) for rng in generators],
        progressbar=True,
        quiet=True,
        discard_tuned_samples=True,
        keep_warning_stat=False,
        var_names=["w", "s"],
        idata_kwargs=None,
        compute_convergence_checks=False,
        compile_kwargs=None,
    )
    assert same(ours, found)
    assert len(made) == (0 if given else 1)


@pytest.mark.slow(2)
def test_result_is_that_of_pm_sample(model, step):
    """From the same start: groups, names, dims, coordinates, types and all numbers."""
    options = RUN | {"chains": 2, "discard_tuned_samples": False}
    ours = sample(model, step, init="point", var_names=["w", "s", "ratio", "fitted"], **options)
    del options["quiet"], options["chain_method"]
    with model:
        theirs = pm.sample(step=step, cores=1, progressbar=False, **options)
    assert same(ours, theirs)
    for name in theirs.children:
        a, b = ours[name].to_dataset(), theirs[name].to_dataset()
        xr.testing.assert_identical(a.drop_attrs(), b.drop_attrs())
        own = {"inference_library_settings", "pymc_sgmcmc_version"}
        timed = {"created_at", "sampling_time"} | own
        assert {k: v for k, v in a.attrs.items() if k not in timed} == {
            k: v for k, v in b.attrs.items() if k not in timed
        }
    assert "MSGNHT_S" in ours.posterior.attrs["inference_library_settings"]
    assert az.summary(ours, var_names=["w"]).shape[0] == 2


@pytest.mark.slow(2)
@pytest.mark.parametrize("method", METHODS)
def test_a_chain_is_the_same_beside_any_others(model, step, method):
    alone = sample(model, step, chains=1, init="point")
    beside = sample(model, step, chains=3, init="point", **method)
    for name in ["w", "s"]:
        np.testing.assert_array_equal(alone.posterior[name][0], beside.posterior[name][0])
        assert not np.array_equal(beside.posterior[name][0], beside.posterior[name][1])
    assert same(beside, sample(model, step, chains=3, init="point"))


@pytest.mark.slow(2)
def test_turns_change_nothing(model, step, monkeypatch):
    expected = sample(model, step, chains=3)
    monkeypatch.setattr(sequential, "SECONDS_PER_BLOCK", -1.0)
    monkeypatch.setattr(sequential, "SECONDS_PER_TURN", -1.0)
    monkeypatch.setattr(sequential, "TURNS_PER_CHANGE", 0)
    seen = []
    got = sample(model, step, chains=3, callback=lambda trace, draw: seen.append(draw.chain))
    assert seen[:6] == [0, 1, 2, 0, 1, 2]
    assert same(expected, got)


@pytest.mark.slow(3)
def test_with_steps_of_pymc(model):
    """NUTS and Metropolis beside a minibatch step draw what they draw in pm.sample."""
    with pm.Model():
        a = pm.Normal("a")
        b = pm.Normal("b")
        k = pm.Poisson("k", 3)
        pm.Normal("y", a + b + k, observed=np.arange(10.0))
        steps = [
            sgm.SGLD([a], step_size=0.01, compile_kwargs={"mode": MODE}),
            pm.NUTS([b]),
            pm.Metropolis([k]),
        ]
        options = RUN | {"chains": 2, "tune": 20}
        del options["quiet"], options["chain_method"]
        theirs = pm.sample(step=steps, cores=1, progressbar=False, **options)
        options |= {"step": steps, "init": "point", "quiet": True}
        ours = sgm.sample(**options, **METHODS[0])
        parallel = sgm.sample(**options, **METHODS[1])
    timed = ["process_time_diff", "perf_counter_diff", "perf_counter_start"]
    for tree in (theirs, ours, parallel):
        tree["sample_stats"] = xr.DataTree(tree["sample_stats"].to_dataset().drop_vars(timed))
    assert same(ours, theirs)
    assert same(ours, parallel)


@pytest.mark.parametrize("method", METHODS)
def test_interrupted_by_a_callback(model, step, method):
    """All chains that had begun are returned, cut to one length."""

    def enough(trace, draw):
        assert trace.draw_idx == draw.draw_idx + 1
        np.testing.assert_array_equal(trace.get_values("w")[draw.draw_idx], draw.point["w"])
        if draw.chain == 1 and draw.draw_idx == 20:
            raise KeyboardInterrupt

    full = sample(model, step, chains=2)
    part = sample(model, step, chains=2, callback=enough, **method)
    kept = part.posterior.chain.values.tolist()
    assert kept in ([0], [0, 1], [1])
    n = part.posterior.sizes["draw"]
    assert n * len(kept) >= 16  # as many draws as can be, and chain 1 alone has 16
    for chain in kept:
        np.testing.assert_array_equal(
            part.posterior["w"].sel(chain=chain), full.posterior["w"].sel(chain=chain)[:n]
        )


def test_a_daemonic_process_has_no_workers(model, step):
    """As those of `multiprocessing.Pool`, which may not start processes."""
    told = multiprocessing.get_context("fork").SimpleQueue()

    def child():
        settings = sample(model, step, chains=2, cores=2, chain_method=None).sample_stats.attrs
        told.put(json.loads(settings["inference_library_settings"])["chain_method"])

    process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert told.get() == "sequential"


def test_interrupt_finds_all_chains(model, step, monkeypatch):
    """Ctrl-C, in one process: no chain has been left behind."""
    monkeypatch.setattr(sequential, "SECONDS_PER_TURN", -1.0)
    monkeypatch.setattr(sequential, "TURNS_PER_CHANGE", 0)

    def ctrl_c(trace, draw):
        if draw.chain == 2 and draw.draw_idx == 15:
            os.kill(os.getpid(), signal.SIGINT)

    part = sample(model, step, chains=3, draws=10**6, callback=ctrl_c)
    assert part.posterior.sizes == {"chain": 3, "draw": 11, "feature": 2}
    full = sample(model, step, chains=3)
    n = min(25, part.posterior.sizes["draw"])
    np.testing.assert_array_equal(part.posterior["w"][:, :n], full.posterior["w"][:, :n])


@pytest.mark.parametrize("error", [OSError, SystemExit, GeneratorExit])
@pytest.mark.parametrize("method", METHODS)
def test_an_error_in_a_callback_keeps_draws(model, step, method, error):
    def unlucky(trace, draw):
        if draw.chain == 1 and draw.draw_idx == 20:
            raise error("disk full")

    with pytest.raises(error, match="disk full") as caught:
        sample(model, step, chains=2, callback=unlucky, **method)
    full = sample(model, step, chains=2)
    kept = caught.value.idata.posterior
    assert "attribute `idata`" in caught.value.__notes__[0]
    for chain in kept.chain.values:
        n = kept.sizes["draw"]
        np.testing.assert_array_equal(kept["w"].sel(chain=chain), full.posterior["w"][chain, :n])


def step_that_breaks(model, error):
    """At the 21st draw, as a reader of streamed rows may."""

    def breaks(update):
        if update >= 3 * 20:
            raise error("the schedule broke")
        return 0.005

    return small_step(model, step_size=breaks)


@pytest.mark.parametrize("method", METHODS)
def test_an_error_in_a_chain_keeps_draws(model, method):
    """The draws that it had made before are there too."""
    step = step_that_breaks(model, ZeroDivisionError)
    with pytest.raises(Exception, match="the schedule broke") as caught:
        sample(model, step, chains=1, **method)
    assert caught.value.idata.posterior.sizes["draw"] == 15
    if method["chain_method"] == "parallel":
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert "Chain 0 failed" in str(caught.value)
        assert "in breaks" in str(caught.value)  # where it happened


def test_draws_outlast_what_is_computed_of_them(model, step, monkeypatch, caplog):
    """A log likelihood that cannot be computed, or is interrupted, does not lose them."""
    wanted = dict(chains=1, idata_kwargs={"log_likelihood": True}, quiet=False)

    def fails(*_, **__):
        raise MemoryError("too large")

    monkeypatch.setitem(log_densities.COMPUTE, "log_likelihood", fails)
    with pytest.raises(MemoryError) as error:
        sample(model, step, **wanted)
    assert error.value.idata.posterior.sizes["draw"] == RUN["draws"]

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setitem(log_densities.COMPUTE, "log_likelihood", interrupted)
    with caplog.at_level(logging.WARNING):
        tree = sample(model, step, **wanted)
    assert tree.posterior.sizes["draw"] == RUN["draws"]
    assert "log_likelihood is not computed. pm.compute_log_likelihood can" in caplog.text


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("part", ["without_nothing", "with_log_densities", "summary", "_check"])
def test_draws_outlast_whatever_comes_after_the_last(
    model, step, part, stored, monkeypatch, caplog, tmp_path
):
    def raises(error):
        def function(*_, **__):
            raise error

        return function

    options = {"chains": 1, "compute_convergence_checks": True, "quiet": False}
    for k, error in enumerate([MemoryError("too large"), SystemExit(1), KeyboardInterrupt()]):
        options["trace"] = tmp_path / f"{k}.zarr" if stored else None
        monkeypatch.setattr(run_chains, part, raises(error))
        if isinstance(error, KeyboardInterrupt):
            tree = sample(model, step, **options)
            assert "without all that is computed from them" in caplog.text
        else:
            with pytest.raises(type(error)) as caught:
                sample(model, step, **options)
            tree = caught.value.idata
        assert tree.posterior.sizes["draw"] == RUN["draws"]


def test_draws_outlast_averages_that_fail(model, step, monkeypatch):
    averages = sgm.Predictions("w", model=model)
    monkeypatch.setattr(sgm.Predictions, "to_dataset", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        sample(model, step, chains=1, predictions=averages)
    assert caught.value.idata.posterior.sizes["draw"] == RUN["draws"]


@pytest.mark.parametrize("stored", [False, True])
def test_draws_outlast_a_store_or_a_conversion_that_fails_once(
    model, step, stored, monkeypatch, tmp_path
):
    """Where the result is made: it is tried again for the exception."""
    failed = []
    made = run_chains.to_datatree

    def fails_once(*args, **kwargs):
        if kwargs["seconds"] and not failed:
            failed.append(True)
            raise MemoryError("too large")
        return made(*args, **kwargs)

    monkeypatch.setattr(run_chains, "to_datatree", fails_once)
    options = {"chains": 1}
    if stored:
        options["trace"] = sgm.ZarrStore(tmp_path / "run.zarr")
        monkeypatch.setattr(options["trace"], "restore_rest", lambda _: 1 / 0)
    with pytest.raises((MemoryError, ZeroDivisionError)) as caught:
        sample(model, step, **options)
    assert caught.value.idata.posterior.sizes["draw"] == RUN["draws"]


@pytest.mark.parametrize("stored", [False, True])
def test_interrupted_before_there_is_a_draw(model, step, stored, caplog, tmp_path):
    """Nothing is said to be returned."""

    def ctrl_c(trace, draw):
        raise KeyboardInterrupt

    options = {"trace": tmp_path / "run.zarr"} if stored else {}
    with pytest.raises(SamplingError, match=r"past tuning.* Interrupted\."):
        sample(model, step, chains=1, callback=ctrl_c, quiet=False, **options)
    assert "are returned" not in caplog.text


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
def test_an_exit_in_a_chain_keeps_draws(model, error, stored, tmp_path):
    """In this process, where it could be taken for the end of the run's generator."""
    options = {"chains": 1, "chain_method": "sequential"}
    if stored:
        options["trace"] = tmp_path / "run.zarr"
    with pytest.raises(error, match="the schedule broke") as caught:
        sample(model, step_that_breaks(model, error), **options)
    assert caught.value.idata.posterior.sizes["draw"] == 15


def test_a_killed_worker_is_told(model, step):
    others = set(multiprocessing.active_children())  # of other tests in this process

    def kill(trace, draw):
        if draw.chain == 0 and draw.draw_idx == 10:
            [worker] = set(multiprocessing.active_children()) - others
            worker.kill()

    with pytest.raises(
        Exception, match=r"process of chain 0 ended unexpectedly \(exit code -9\)"
    ) as e:
        sample(model, step, chains=1, draws=10**5, callback=kill, chain_method="parallel", cores=1)
    assert e.value.idata.posterior.sizes["draw"] >= 6


@pytest.mark.slow(2)
@pytest.mark.parametrize("method", METHODS)
def test_a_nonfinite_update_stops_its_chain_only(model, method, caplog):
    """The others finish; the message names variable, update, step size and remedy."""

    def explode(update):
        return 0.005 if update < 3 * 12 else 1e12

    step = small_step(model, step_size=explode)
    with caplog.at_level(logging.INFO, logger="pymc"):
        part = sample(model, step, chains=2, quiet=False, progressbar=False, **method)
    assert part.posterior.sizes["draw"] == 7  # 12 draws, 5 of them tuning
    assert not part.sample_stats["nonfinite"].any()
    told = [r.getMessage() for r in caplog.records if "stopped" in r.getMessage()]
    assert len(told) == 2
    for text in ("after 7 draws", "'w'", "update 3", "1e+12", "smaller step_size", "initvals"):
        assert text in told[0]
    with pytest.raises(pm.exceptions.SamplingError, match=r"past tuning.* 12 tuning draws.*'w'"):
        sample(model, step, tune=20, chains=2, **method)


def test_a_bad_start_stops_one_chain(model, step, caplog):
    bad = {"w": [np.inf, 0.0]}
    with caplog.at_level(logging.INFO, logger="pymc"):
        part = sample(
            model, step, chains=3, initvals=[None, bad, None], quiet=False, progressbar=False
        )
    assert part.posterior.chain.values.tolist() == [0, 2]
    full = sample(model, step, chains=3)
    np.testing.assert_array_equal(part.posterior["w"], full.posterior["w"][[0, 2]])
    assert "Chains left out because they are too short: [1]" in caplog.text


def test_starts(model, step):
    """Jittered per chain, but for variables that have an initial value."""
    starts = []
    sample(
        model,
        small_step(model, step_size=1e-12),
        draws=1,
        tune=0,
        chains=3,
        initvals=[{"w": [2.0, 3.0]}, None, {"s": 2.5}],
        callback=lambda trace, draw: starts.append(draw.point),
    )
    plain = model.initial_point()
    w = np.array([start["w"] for start in starts])
    s = np.array([start["s_log__"] for start in starts])
    np.testing.assert_allclose(w[0], [2.0, 3.0], atol=1e-9)
    np.testing.assert_allclose(s[2], np.log(2.5), atol=1e-9)
    for moved in (w[1], w[2], s[0] - plain["s_log__"], s[1] - plain["s_log__"]):
        assert (np.abs(moved) < 1).all()
        assert (np.abs(moved) > 1e-6).all()
    assert not np.allclose(w[1], w[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws=0"),
        ({"tune": -1}, "tune=-1"),
        ({"chains": 1.5}, "chains=1.5"),
        ({"random_seed": -1}, "random_seed=-1"),
        ({"random_seed": "a"}, "random_seed='a' must be an integer"),
        ({"random_seed": [-1, 2]}, r"random_seed=\[-1, 2\] must be an integer"),
        ({"callback": 3}, "callback=3 must be a function"),
        ({"idata_kwargs": 3}, "idata_kwargs=3 must be a dict"),
        ({"initvals": {"w": [1, 2, 3]}}, r"'w' has the shape \(3,\).* has \(2\)"),
        ({"step": "MSGNHT_S"}, "step='MSGNHT_S' is not a step"),
        ({"init": "advi"}, "init='advi'"),
        ({"var_names": ["v"]}, "var_names: the model has no variable 'v'. It has: fitted, ratio"),
        ({"var_names": "w"}, r"\['w'\]"),
        ({"initvals": {"v": 1}}, "initvals: the model has no variable 'v'"),
        ({"initvals": [{"w": [1, 1]}], "chains": 2}, "initvals has 1 entries.* 2 chains"),
        ({"chain_method": "threads"}, "chain_method='threads' must be one of 'sequential'"),
        ({"resume": True}, "resume=True needs"),
        ({"trace": 3}, "trace=3 must be a path"),
        ({"step": sgm.SGLD}, "step=SGLD is a class"),
    ],
)
def test_bad_arguments(model, step, options, message):
    with pytest.raises(ValueError, match=message):
        sample(model, **({"step": step} | options))


# ---- what could not be converted in the end ------------------------------------------------


def no_step(*_):
    pytest.fail("A step was made.")


@pytest.mark.parametrize(
    ("idata_kwargs", "message"),
    [
        ({"foo": 1}, r"idata_kwargs=\{'foo': \.\.\.\}: .* It takes prior, .*include_transformed"),
        ({"trace": 1}, "'trace': .* does not take this from sgm.sample"),
        ({"coords": 3}, "coords=3 must be a dict"),
        (
            {"coords": {"feature": [1, 2, 3]}},
            "coords has 3 labels for the dim 'feature' of 'w'.* 2",
        ),
        ({"coords": {"draw": [1]}}, r"labels for 'draw'.*\.assign_coords\(draw="),
        ({"coords": {"feature": [(1, 2), (3, 4)]}}, "dim 'feature' are not single.* make strings"),
        ({"dims": {"s": ["a"]}}, r"dims=\{'s': \['a'\]\} has 1 dims, but 's' has 0"),
        ({"dims": {"w": "feature"}}, r"dims=\{'w': 'feature'\} must have a list of dims"),
        ({"dims": {"s": [], "w": ["a/b"]}}, "dim 'a/b' has a '/'"),
        ({"log_likelihood": ["w"]}, r"log_likelihood=\['w'\] must be True or .* observed .*: y"),
        ({"log_likelihood": "y"}, "log_likelihood='y' must be True or a list"),
        ({"log_prior": ["y"]}, r"log_prior=\['y'\] must be True or .* free .*: w, s"),
    ],
)
def test_conversions_that_would_fail_in_the_end(model, monkeypatch, idata_kwargs, message):
    """Refused before the default step is made, let alone its warm-up."""
    monkeypatch.setattr(parametrisation, "default_step", no_step)
    with pytest.raises(ValueError, match=f"(?i){message}"):
        sample(model, None, idata_kwargs=idata_kwargs)


def test_log_densities_need_all_free_variables(model, monkeypatch):
    monkeypatch.setattr(parametrisation, "default_step", no_step)
    with pytest.raises(ValueError, match=r"log_prior needs .* var_names leaves out s\. Record"):
        sample(model, None, idata_kwargs={"log_prior": True}, var_names=["w"])


@pytest.mark.parametrize(
    ("dim", "labels", "message"),
    [
        (
            "f",
            pd.MultiIndex.from_product([["a", "b"], [1]]),
            r"dim 'f' are not single .*\('a', 1\)",
        ),
        ("f", [(1, 2), (3,)], r"dim 'f' are not single .*\(1, 2\), \(3,\)\. Make strings"),
        ("km/h", [1, 2], "dim 'km/h' has a '/'.*: rename it"),
    ],
)
def test_dims_that_no_result_can_have(monkeypatch, dim, labels, message):
    monkeypatch.setattr(parametrisation, "default_step", no_step)
    with pm.Model(coords={dim: labels}) as model:
        pm.Normal("y", pm.Normal("w", dims=dim).sum(), 1, observed=np.arange(5.0))
    with pytest.raises(ValueError, match=message):
        sample(model, None)


def test_dims_that_are_not_in_the_result_may_be_anything(monkeypatch):
    labels = pd.MultiIndex.from_product([["a", "b"], [1]])
    with pm.Model(coords={"row": labels}) as model:
        pm.Normal("y", pm.Normal("w"), 1, observed=np.arange(2.0), dims="row")
        step = sgm.SGLD(step_size=0.01, batch_size=2, compile_kwargs={"mode": PYTHON})
    with pytest.raises(ValueError, match="dim 'row'"):
        sample(model, step)
    assert "w" in sample(model, step, include_data=False).posterior


def test_one_draw_is_converted_before_any_is_made(model, step):
    """What nobody has thought of fails then, and not at the end."""
    made = []
    with pytest.raises(AttributeError) as error:
        sample(model, step, idata_kwargs={"model": 3}, callback=lambda **_: made.append(1))
    assert not made
    assert "Nothing has been sampled" in error.value.__notes__[0]


def test_no_model(step):
    with pytest.raises(ValueError, match="model=3 must be"):
        sgm.sample(step=step, model=3, **RUN)


def test_fork_and_jax_are_refused(model):
    with model:
        step = sgm.SGLD(step_size=0.01, batch_size=20, compile_kwargs={"mode": "JAX"})
    with pytest.raises(ValueError, match="do not survive a fork"):
        sample(model, step, chain_method="parallel", mp_ctx="fork")


def test_a_step_for_all_variables_is_taken_as_it_is(model, step, monkeypatch):
    """PyMC, which would write out the model's density to choose steps, has none to choose."""
    monkeypatch.setattr(step_of_run, "assign_step_methods", None)
    for given in (step, [step]):
        assert step_of_run.step_for_all(model, given, model.initial_point(), None) is step


def test_step_of_another_model(step):
    with pytest.raises(ValueError, match=r"not a value variable|another model"):
        sample(small_model(), step)


def test_what_is_recorded(model, step, caplog):
    """Variables with one number per row only if they are named."""
    with caplog.at_level(logging.INFO, logger="pymc"):
        tree = sample(model, step, chains=1, quiet=False, progressbar=False)
    assert set(tree.posterior.data_vars) == {"w", "s", "ratio"}
    assert "Not recorded (one number per row): 'fitted'" in caplog.text
    named = sample(model, step, chains=1, var_names=["fitted"])
    assert named.posterior["fitted"].dims == ("chain", "draw", "obs")
    transformed = sample(model, step, chains=1, idata_kwargs={"include_transformed": True})
    assert "s_log__" in transformed.posterior
    kept = sample(model, step, chains=1, keep_warning_stat=True)
    assert "warning" in kept.sample_stats


def test_rows_are_recognised_without_dims(caplog):
    X = np.random.default_rng(0).normal(size=(60, 2))
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3, shape=2)
        pm.Deterministic("fitted", pm.math.dot(pm.Data("X", X), w))
        pm.Normal("y", model["fitted"], 1.0, observed=X @ [1.0, 2.0])
    tree = sample(model, small_step(model), chains=1)
    assert set(tree.posterior.data_vars) == {"w"}


def test_large_data_is_left_out(model, step, caplog, monkeypatch):
    assert {"observed_data", "constant_data"} <= set(sample(model, step, chains=1).children)
    monkeypatch.setattr("pymc_sgmcmc.run.result.MAX_DATA_BYTES", 100)
    with caplog.at_level(logging.INFO, logger="pymc"):
        without = sample(model, step, chains=1, quiet=False, progressbar=False)
    assert set(without.children) == {"posterior", "sample_stats"}
    assert "include_data=True" in caplog.text
    asked = sample(model, step, chains=1, include_data=True)
    assert "observed_data" in asked.children


def test_convergence_is_checked_on_a_part_of_large_models(model, monkeypatch, caplog):
    rng = np.random.default_rng(0)
    bad = rng.normal(size=(2, 200, 40))
    bad[1, :, :] += 5
    tree = xr.DataTree.from_dict({
        "/posterior": xr.Dataset({
            "w": (("chain", "draw", "feature"), bad),
            "s": (("chain", "draw"), bad[:, :, 0]),  # a scalar too
        })
    })  # fmt: skip
    for most, told in (
        (10**6, None),
        (2 * 200 * 10, "Convergence is checked on only 10 of 41 elements"),
    ):
        caplog.clear()
        monkeypatch.setattr(result, "MAX_CHECKED", most)
        with caplog.at_level(logging.INFO, logger="pymc"):
            result.check_convergence(tree, model)
        assert "rhat statistic is larger" in caplog.text
        assert ("Convergence is checked" in caplog.text) == (told is not None)
        assert told is None or told in caplog.text


def test_an_error_of_the_convergence_check_loses_nothing(model, step, caplog, monkeypatch):
    def fails(*_):
        raise ValueError("no such dim")

    monkeypatch.setattr("pymc_sgmcmc.run_chains.check_convergence", fails)
    with caplog.at_level(logging.WARNING):
        found = sample(model, step, chains=2, compute_convergence_checks=True, quiet=False)
    assert found.posterior["w"].shape[:2] == (2, 25)
    assert "Convergence is not checked: ValueError: no such dim" in caplog.text


def test_quiet(model, step, caplog, capfd):
    with caplog.at_level(logging.INFO, logger="pymc"):
        sample(model, step, chains=2, compute_convergence_checks=True)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bar", [True, "combined", "split+stats"])
def test_progress(model, step, method, bar, monkeypatch):
    """Bars advance by whole blocks and are full in the end; many chains share one."""
    shown = []
    monkeypatch.setattr(progress, "MAX_BARS", 2)
    monkeypatch.setattr(
        progress.Progress,
        "_create_backend",
        lambda self, **kwargs: Recorder(shown),
    )
    sample(model, step, chains=3, quiet=False, progressbar=bar, **method)
    bars = 3 if bar == "split+stats" else 1
    assert {u["task_id"] for u in shown} == set(range(bars))
    for number in range(bars):
        own = [u for u in shown if u["task_id"] == number]
        assert sum(u["advance"] for u in own) == 3 * 30 / bars
        assert [u["is_last"] for u in own] == [False] * (len(own) - 1) + [True]
        if bar == "split+stats":
            assert own[-1]["stats"]["draw"] == 25
            assert {"kinetic_temperature", "step_size", "gradient_norm"} < own[-1]["stats"].keys()


class Recorder:
    def __init__(self, shown):
        self.shown = shown

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def update(self, **kwargs):
        self.shown.append(kwargs)


def test_many_points_are_recorded_at_once(model, step):
    """What engines with many chains use gives the values of PyMC's recorder."""
    runs = []
    sample(model, step, chains=1, callback=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pymc_sgmcmc.run.engines.sequential", lambda run: runs.append(run) or iter(())
        )
        with pytest.raises(AttributeError):  # it is no generator, and has done all it should
            sample(model, step, chains=1, var_names=["w", "s", "ratio", "fitted"])
    [run] = runs
    with pytest.raises(FrozenInstanceError):  # engines and stores share it
        run.together = True
    rng = np.random.default_rng(0)
    for n in (1, 64, 130):
        points = {"w": rng.normal(size=(n, 2)), "s_log__": rng.normal(size=n)}
        made = run.recorder.record(points)
        assert list(made) == run.recorder.trace.varnames
        for k in range(n):
            values = run.recorder.trace.fn(points["w"][k], np.asarray(points["s_log__"][k]))
            for name, value in zip(made, values, strict=True):
                np.testing.assert_allclose(made[name][k], value, rtol=1e-12)


SCRIPT = """
    import sys
    sys.path.insert(0, {tests!r})
    from kills import same, small_model, small_run
    import pymc_sgmcmc as sgm

    def main():
        model = small_model()
        with model:
            step = sgm.MSGNHT_S(
                step_size=0.005, batch_size=20, thin=3, compile_kwargs={{"mode": "JAX"}}
            )
        options = dict(chain_method="parallel", cores=2)

        def stop(trace, draw):
            if draw.draw_idx == 8:
                raise KeyboardInterrupt

        small_run(model, step, trace={path!r}, callback=stop, tune=0, **options)
        assert 8 <= max(sgm.ZarrStore({path!r}).n_draws)
        resumed = small_run(model, step, trace={path!r}, resume=True, tune=0)
        assert same(small_run(model, step, tune=0), resumed)
        print("all the same")

    {call}
"""


def run_script(tmp_path, call):
    script = tmp_path / "script.py"
    tests = os.path.dirname(os.path.dirname(__file__))
    text = textwrap.dedent(SCRIPT).format(tests=tests, path=str(tmp_path / "z"), call=call)
    script.write_text(text)
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)


@pytest.mark.long
def test_jax_in_processes(tmp_path):
    """By forkserver: the same draws, also after an interruption and resuming here."""
    done = run_script(tmp_path, 'if __name__ == "__main__":\n    main()'.replace("\n", "\n    "))
    assert "all the same" in done.stdout, done.stderr[-2000:]


def expressions(compiled):
    """Recorded expressions of a value x of 40 elements, and what NumPy makes of them.

    The Cholesky factor has to be taken point by point, so that it is compiled.
    """
    with pm.Model() as model:
        x = pm.HalfNormal("x", shape=40)
        pm.Deterministic("total", x.sum() + pt.as_tensor(1))
        if compiled:
            pm.Deterministic("root", pt.linalg.cholesky(pt.diag(x)))
        pm.Normal("y", x[0], 1, observed=np.zeros(100))

    def expected(x_log):
        x = np.exp(x_log)
        more = {"root": np.apply_along_axis(np.diag, -1, np.sqrt(x))} if compiled else {}
        return {"x": x, "total": x.sum(axis=-1) + 1} | more

    return model, expected


@pytest.mark.slow(4)
@pytest.mark.parametrize("compiled", [False, True])
def test_transforms_are_not_compiled_and_the_rest_as_a_jax_step(compiled):
    model, expected = expressions(compiled)
    with model:
        step = sgm.SGLD(step_size=1e-3, batch_size=20, compile_kwargs={"mode": "JAX"})
    recorder = recorder_of(model, step, model.initial_point(), None, transformed=False)
    for function in (recorder.trace.fn, recorder._many):
        assert isinstance(function.maker.linker, JAXLinker) == compiled
    points = np.random.default_rng(0).normal(size=(100, 40))
    of_many = recorder.record({"x_log__": points})
    of_one = [recorder.trace.fn(x_log__=point) for point in points[:2]]
    for k, name in enumerate(recorder.trace.varnames):
        right = expected(points)[name]
        np.testing.assert_allclose(of_many[name], right, rtol=1e-12, atol=1e-15)
        for one, value in zip(of_one, right, strict=False):
            np.testing.assert_allclose(one[k], value, rtol=1e-12, atol=1e-15)


def test_an_interrupt_while_draws_are_handed_on_leaves_no_gap(regression, monkeypatch):
    """Draws that were about to be handed on come out once, in their places."""
    with regression:
        step = sgm.SGLD(step_size=1e-3, batch_size=20, compile_kwargs={"mode": PYTHON})
    options = {"tune": 0, "chains": 1, "step": step, "random_seed": 3, "quiet": True}
    options |= {"model": regression, "compute_convergence_checks": False}
    expected = sgm.sample(30, **options).posterior["w"]
    column, calls = sequential._column, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return column(*args)

    monkeypatch.setattr(sequential, "_column", interrupted)
    draws = sgm.sample(30, **options).posterior["w"]
    assert 0 < draws.sizes["draw"] <= 30
    np.testing.assert_array_equal(draws, expected[:, : draws.sizes["draw"]])
