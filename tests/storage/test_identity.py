"""Which run lies in a store: another one is seen by what it computes, not by how it prints."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from kills import MODE, small_model, small_run, small_step

import pymc_sgmcmc as sgm
from pymc_sgmcmc.storage import digests
from pymc_sgmcmc.storage.digests import array_digest, rows_digest, source_of, value_digest
from pymc_sgmcmc.storage.identity import differences, identity


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture(scope="module")
def model(quick_compilation):
    return small_model()


def scaled(scale):
    return lambda update: scale / (1 + update)


SCALE = 0.005


def with_global(update):
    return helper(update) * SCALE


def helper(update):
    return 1.0


class Decay:
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, update):
        return 0.005 * self.rate


# ---- functions -----------------------------------------------------------------------------


FUNCTIONS = {
    "constant": lambda update: 0.005,
    "another constant": lambda update: 0.006,
    "another operation": lambda update: 0.005 + 0 * update,
    "default": lambda update, scale=0.005: scale,
    "another default": lambda update, scale=0.006: scale,
    "keyword default": lambda update, *, scale=0.005: scale,
    "closure": scaled(0.005),
    "another closure": scaled(0.006),
    "closure of an array": scaled(np.full(2000, 0.005)),
    "another array": scaled(np.r_[np.full(1000, 0.005), 0.006, np.full(999, 0.005)]),
    "inner function": lambda update: (lambda: 0.005)(),
    "another inner function": lambda update: (lambda: 0.006)(),
    "object": Decay(0.1),
    "another object": Decay(0.2),
    "method": Decay(0.1).__call__,
    "partial": partial(FUNCTION := (lambda scale, update: scale), 0.005),
    "another partial": partial(FUNCTION, 0.006),
    "set": lambda update: 0.005 if update in {"a", "b", "c"} else 0.004,
    "ufunc": np.exp,
    "another ufunc": np.log,
    "builtin": abs,
    "recursive": with_global,
}


def test_functions_are_told_apart(monkeypatch):
    found = {name: value_digest(function) for name, function in FUNCTIONS.items()}
    assert len(set(found.values())) == len(found)
    # a value, and a function, that a function takes from its module
    before = value_digest(with_global)
    monkeypatch.setitem(globals(), "SCALE", 0.006)
    changed = value_digest(with_global)
    monkeypatch.setitem(globals(), "helper", lambda update: 2.0)
    assert len({before, changed, value_digest(with_global)}) == 3
    # and one of a class
    before = value_digest(Decay(0.1))
    monkeypatch.setattr(Decay, "__call__", lambda self, update: 0.005)
    assert value_digest(Decay(0.1)) != before


@pytest.mark.slow(5)
def test_digests_are_the_same_in_another_process():
    """Hashes of strings and memory addresses differ there."""
    script = """
import sys
sys.path[:0] = sys.argv[1:]
import test_identity
for function in test_identity.FUNCTIONS.values():
    print(test_identity.value_digest(function))
"""
    told = subprocess.run(
        [sys.executable, "-c", script, *map(str, Path(__file__).parents[:2])],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert told.split() == [value_digest(function) for function in FUNCTIONS.values()]


SOURCES = {
    "spaced": "def schedule(update):\n    # slow\n    return (0.005\n            - update)\n",
    "plain": "x = 1\n\ndef schedule(update):\n    return 0.005 - update\n",
    "other": "def schedule(update):\n    return update - 0.005\n",
    "of two": "def schedule(n): return 1\nother, schedule = lambda n: 2, lambda n: 0.005 - n\n",
    "first": "schedule, other = lambda n: 2, lambda n: 0.005 - n\n",
}


def test_a_functions_source_counts_but_not_its_layout(tmp_path):
    found = {}
    for name, source in SOURCES.items():
        path, space = tmp_path / f"{name}.py", {"__name__": "own"}
        path.write_text(source)
        exec(compile(source, str(path), "exec"), space)
        found[name] = value_digest(space["schedule"])
        source = source_of(space["schedule"].__code__)
        if name == "first":
            assert source == ("n: 2" if sys.version_info >= (3, 13) else None)
        else:
            assert "0.005" in source
    assert found["spaced"] == found["plain"]
    assert len(set(found.values())) == len(SOURCES) - 1


def test_where_a_function_stands_does_not_count():
    source = "def schedule(update):\n    return 0.005\n"
    spaces: list[dict] = [{"__name__": "own"}, {"__name__": "own"}]  # else Python's
    exec(compile(source, "one.py", "exec"), spaces[0])
    exec(compile("\n\n\n" + source, "two.py", "exec"), spaces[1])
    one, two = (space["schedule"] for space in spaces)
    assert value_digest(one) == value_digest(two)


# ---- data ----------------------------------------------------------------------------------


def test_every_row_counts(tmp_path, monkeypatch):
    """In memory, of any layout, on disk: a change of one element anywhere is another digest."""
    monkeypatch.setattr(digests, "BYTES_AT_ONCE", 1000)
    rng = np.random.default_rng(0)
    array = rng.normal(size=(300, 7))
    whole = array_digest(array)
    assert array_digest(array.copy(order="F")) == whole
    np.save(tmp_path / "x.npy", array)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+")
    assert array_digest(mapped) == whole
    assert rows_digest(lambda a, b: mapped[a:b], 300, array) == whole
    for row in (0, 150, 299):
        mapped[row, 3] += 1e-12
        assert array_digest(mapped) != whole
        mapped[row, 3] = array[row, 3]
    assert array_digest(mapped) == whole
    assert array_digest(array.reshape(7, 300)) != whole
    assert array_digest(array.astype("float32")) != whole
    assert array_digest(np.array(1.0)) != array_digest(np.array(2.0))
    assert array_digest(np.array(["a", None], object)) != array_digest(
        np.array(["b", None], object)
    )


# ---- runs ----------------------------------------------------------------------------------


class Seen(sgm.ZarrStore):
    """Keeps the identity of the run that begins."""

    def begin(self, run, tree):
        self.identity = identity(run)
        raise KeyError("enough")


def identity_of(model, step, **options):
    seen = Seen("nowhere.zarr")
    with pytest.raises(KeyError, match="enough"):
        small_run(model, step, trace=seen, **options)
    return seen.identity


def at_module_level(update):
    return 0.005


@pytest.mark.slow(2)
def test_another_schedule_is_another_run(model):
    def within_a_function(update):
        return 0.005

    assert value_digest(at_module_level.__code__) == value_digest(within_a_function.__code__)
    one = identity_of(model, small_step(model, step_size=lambda update: 0.005))
    same = identity_of(model, small_step(model, step_size=lambda update: 0.005))
    other = identity_of(model, small_step(model, step_size=lambda update: 0.006))
    assert differences(one, same) == []
    assert differences(one, other) == ["settings: 'step_size of w, s_log__' is different"]


def test_another_conditional_is_another_run():
    rng = np.random.default_rng(0)
    with pm.Model(coords={"obs": range(40)}) as model:
        centre = pm.Normal("centre", [-1, 1], 3, shape=2)
        z = pm.Bernoulli("z", 0.5, dims="obs")
        pm.Normal("y", centre[z], 1, observed=rng.normal(size=40), dims="obs")

    def step(conditional):
        with model:
            return sgm.SGLD(
                step_size=0.001,
                batch_size=10,
                latents=sgm.Gibbs([z], n_samples=1, burn_in=0, conditional={z: conditional}),
                self_check=False,
                compile_kwargs={"mode": MODE},
            )

    def drawn(share):
        def conditional(values, stream):
            return stream.draw(pt.random.bernoulli, share, size=values["z"].shape)

        return conditional

    one, same, other = (identity_of(model, step(drawn(share))) for share in (0.5, 0.5, 0.9))
    assert differences(one, same) == []
    assert differences(one, other) == ["settings: 'latents of centre' is different"]


def test_rows_that_a_sample_of_them_misses(tmp_path):
    """Streamed from a memory map: any changed row is another run."""
    rng = np.random.default_rng(0)
    y = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", "float64", (5000,))
    y[:] = rng.normal(size=5000)
    data = sgm.StreamedData({"y": y}, window=512)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("like", mu, 1, observed=pm.Data("y", data.head()["y"]))
        step = sgm.SGLD(step_size=1e-4, batch_size=10, data=data, compile_kwargs={"mode": MODE})
    one = identity_of(model, step)
    y[1234] += 1e-9
    assert differences(one, identity_of(model, step)) == ["data: 'stream mu' is different"]


def test_other_labels_are_another_run():
    def of(labels):
        with pm.Model(coords={"feature": labels}) as model:
            w = pm.Normal("w", dims="feature")
            pm.Normal("y", w.sum(), observed=np.arange(20.0))
        return identity_of(model, small_step(model, batch_size=None))

    assert differences(of(["a", "b"]), of(["a", "c"])) == ["coords: 'feature' is different"]
