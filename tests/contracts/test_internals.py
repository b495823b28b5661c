"""What this package uses of others beside their public interface is there, or done without."""

import importlib.util
import logging
from functools import partial

import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numba import njit
from numba.core.codegen import CPUCodeLibrary
from numba.np import arrayobj
from pytensor.compile.mode import get_mode
from pytensor.link.numba.linker import NumbaLinker
from test_layout import IMPORTS, PACKAGE

import pymc_sgmcmc as sgm
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.backends.shape_errors import short_shape_errors
from pymc_sgmcmc.backends.software_prefetch import FILE, prefetch_rows
from pymc_sgmcmc.internals_used import INTERNALS, available, is_there

NAMES = sorted({name for names in INTERNALS.values() for name in names})
PRIVATE = ("numba.core.", "numba.np.", "llvmlite.", "pytensor.link.", "zarr.core.")


@pytest.mark.parametrize("name", NAMES)
def test_internal_is_there(name):
    files = [file for file, names in INTERNALS.items() if name in names]
    assert is_there(name), f"{name} is gone; {', '.join(files)} need it"


def test_what_is_not_there_is_noticed():
    assert not is_there("numba.core.codegen:JITCodeLibrary._gone")
    assert not is_there("numba.core.gone:anything")


def test_every_private_import_is_in_the_table():
    found = {n for names in IMPORTS.values() for n in names if n.startswith(PRIVATE)}
    listed = [name.replace(":", ".") for name in NAMES]
    modules = {"pytensor.link.jax.dispatch", "llvmlite.ir"}  # imported for what it registers; whole
    missing = {n for n in found - modules if not any(f"{x}.".startswith(f"{n}.") for x in listed)}
    assert len(found) > 20
    assert missing == set()
    assert {f for f in INTERNALS if not (PACKAGE / f).exists()} == set()


@pytest.fixture
def gone(monkeypatch):
    """Take a name away that a file needs; what is known to be there is forgotten."""

    def without(file):
        monkeypatch.setitem(INTERNALS, file, ("numba:gone",))
        available.cache_clear()

    yield without
    available.cache_clear()


def test_without_internals_of_numba_the_linker_is_pytensors(monkeypatch, caplog):
    assert type(with_cheap_calls(get_mode("NUMBA")).linker) is not NumbaLinker
    monkeypatch.delattr(CPUCodeLibrary, "_optimize_functions")
    available.cache_clear()
    with caplog.at_level(logging.WARNING):
        modes = [with_cheap_calls(get_mode("NUMBA")) for _ in range(2)]
    monkeypatch.undo()
    available.cache_clear()
    assert [type(mode.linker) for mode in modes] == [NumbaLinker] * 2
    [record] = caplog.records  # once
    assert "no numba.core.codegen:JITCodeLibrary._optimize_functions" in record.message
    assert "PyTensor's own numba linker is used" in record.message
    x, matrix = pt.vector("x", shape=(2,)), pt.matrix("matrix", shape=(3, 2))
    function = pytensor.function([matrix, x], matrix @ x, mode=modes[0])
    values = np.arange(6, dtype=x.dtype).reshape(3, 2)
    np.testing.assert_array_equal(function(values, values[0]), values @ values[0])


@pytest.mark.parametrize("name", ["low_overhead_linker", "generator_address"])
def test_each_file_of_the_linker_is_asked_for(gone, name):
    gone(f"backends/{name}.py")
    assert type(with_cheap_calls(get_mode("NUMBA")).linker) is NumbaLinker


def test_without_prefetching_rows_are_read_as_they_are(gone):
    def reads(array, rows):
        prefetch_rows(array, rows)
        return array[rows].sum()

    array, rows = np.arange(300_000.0), np.array([3, 200_000])
    prefetching = njit(reads)
    assert prefetching(array, rows) == 200_003
    gone(FILE)
    reads_plainly = njit(reads)  # for another type: numba knows what it has chosen for the first
    assert reads_plainly(array.astype("float32"), rows) == 200_003
    code = [next(iter(f.inspect_llvm().values())) for f in (prefetching, reads_plainly)]
    assert ["llvm.prefetch" in text for text in code] == [True, False]


def test_without_numbas_function_shape_errors_are_numbas(gone):
    numbas = arrayobj.raise_with_shape_context
    with short_shape_errors():
        assert arrayobj.raise_with_shape_context is not numbas
    gone("backends/shape_errors.py")
    with short_shape_errors():
        assert arrayobj.raise_with_shape_context is numbas


def copy_of(name):
    """A module as it is when it is imported now."""
    spec = importlib.util.spec_from_file_location("copy", PACKAGE / f"backends/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_normals_without_numbas_words(gone, caplog):
    gone("backends/normals_numba.py")
    draw = copy_of("normals_numba").draw_normals["float32"]
    assert "no numba:gone" in caplog.text
    n = 100_000
    first, second = (draw(np.random.default_rng(1), n) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    other = draw(np.random.default_rng(2), n)
    for z in (first, other):  # within 4 standard errors
        assert abs(z.mean()) < 4 / n**0.5
        assert abs(z.var() - 1) < 4 * (2 / n) ** 0.5
    assert abs(np.corrcoef(first, other)[0, 1]) < 4 / n**0.5


def test_signals_without_numbas_function(gone, caplog):
    whole = copy_of("interrupts").CALLED_BY_MACHINE_CODE
    gone("backends/interrupts.py")
    assert len(copy_of("interrupts").CALLED_BY_MACHINE_CODE) == len(whole) - 1
    assert "Ctrl-C may end a run with a SystemError" in caplog.text


@pytest.mark.parametrize("mode", ["PYTORCH", "MLX"])
@pytest.mark.parametrize("made", [partial(sgm.MSGNHT_S, step_size=0.1), sgm.sample])
def test_a_linker_that_steps_do_not_know_is_refused(mode, made):
    """Before anything is compiled."""
    with pm.Model():
        x = pm.Normal("x")
        pm.Normal("y", x, 1, observed=np.zeros(50))
        with pytest.raises(ValueError, match=r"not run with \w+Linker\. .*'NUMBA', 'JAX' .*'CVM'"):
            made(compile_kwargs={"mode": mode})


@pytest.mark.parametrize("made", [partial(sgm.MSGNHT_S, step_size=0.1), sgm.sample])
def test_no_compiled_code_is_refused(monkeypatch, made):
    """The setting is read where numba is imported."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    with pm.Model():
        x = pm.Normal("x")
        pm.Normal("y", x, 1, observed=np.zeros(50))
        with pytest.raises(ValueError, match=r"^NUMBA_DISABLE_JIT=1 .* unset it.*'FAST_COMPILE'"):
            made()
