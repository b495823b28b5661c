"""What differs between PyTensor's backends: where arrays live and what a generator is.

Only this file handles JAX's arrays and PyTensor's representation of generators on JAX. The only
other modules that import JAX are `random_jax` and `pymc_sgmcmc.run.devices` (many chains).
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
from pytensor import config
from pytensor.compile.mode import Mode, get_mode
from pytensor.link.basic import JITLinker
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker

from pymc_sgmcmc.backends.compile_time import compile_lock
from pymc_sgmcmc.number_checks import shown


class Backend(ABC):
    """Where arrays live, what a generator is, and what compiled calls can do."""

    has_accelerator: bool
    """Whether arrays live on a device other than the CPU."""
    forks: bool
    """Whether compiled calls run in a process created by a fork."""
    maps_functions: bool
    """Whether `mapped` maps a compiled function over chains or rows; if not, threads call it."""
    pads_lengths: bool
    """Whether a function is compiled again for each length of an array, so these should be few."""
    compiles_sooner: bool
    """Whether it compiles faster than numba."""

    @abstractmethod
    def array(self, value: np.ndarray) -> Any: ...
    @abstractmethod
    def as_numpy(self, array: Any) -> np.ndarray: ...
    @abstractmethod
    def generator(self, rng: np.random.Generator) -> Any: ...
    @abstractmethod
    def generator_state(self, rng: Any) -> dict[str, Any]: ...
    @abstractmethod
    def restore_generator(self, state: dict[str, Any]) -> Any: ...

    def mapped(self, function: Callable, n_mapped: int, n_same: int) -> Callable:
        raise NotImplementedError


class Host(Backend):
    """numba, the C linker and Python, for which arrays and generators are NumPy's."""

    has_accelerator = False
    forks = True
    maps_functions = False
    pads_lengths = False
    compiles_sooner = False

    def array(self, value: np.ndarray) -> Any:
        """Put an array where compiled calls find it without a copy, with contiguous rows."""
        return np.asarray(value, order="C")

    def as_numpy(self, array: Any) -> np.ndarray:
        """Return a compiled call's output as a writable array."""
        return array

    def generator(self, rng: np.random.Generator) -> Any:
        """Turn a NumPy generator into the form that compiled calls advance."""
        return rng

    def generator_state(self, rng: Any) -> dict[str, Any]:
        """Return plain values from which `restore_generator` recreates the generator."""
        return rng.bit_generator.state

    def restore_generator(self, state: dict[str, Any]) -> Any:
        """Return a generator in a saved state."""
        rng = np.random.Generator(getattr(np.random, state["bit_generator"])())
        rng.bit_generator.state = state
        return rng


class Jax(Backend):
    """JAX, where arrays stay on the device and a generator is a dict that holds a JAX key."""

    forks = False
    maps_functions = True
    pads_lengths = True
    compiles_sooner = True

    def __init__(self):
        # PyTensor turns on JAX's 64-bit mode when this is first imported. Arrays made earlier would
        # have 32 bits, and functions compiled for them would be compiled again for later arrays.
        import pytensor.link.jax.dispatch  # noqa: F401

        import pymc_sgmcmc.backends.random_jax  # noqa: F401

        # PyTensor asks JAX for 64 bits although floatX="float32" has turned them off, which gives
        # dozens of warnings that the user cannot avoid.
        warnings.filterwarnings(
            "ignore",
            message="Explicitly requested dtype (float|int|uint)64",
            category=UserWarning,
            module=r"jax\._src|pytensor\.link\.jax",
        )
        import jax

        if config.floatX == "float64":  # PyTensor asks for it once, whatever floatX is set later
            jax.config.update("jax_enable_x64", True)
        self.has_accelerator = jax.default_backend() != "cpu"

    def array(self, value: np.ndarray) -> Any:
        """Put an array on the device."""
        import jax

        return jax.numpy.asarray(value)

    def as_numpy(self, array: Any) -> np.ndarray:
        return np.array(array)

    def mapped(self, function: Callable, n_mapped: int, n_same: int) -> Callable:
        """Map a compiled function over its first arguments; the next ``n_same`` stay the same."""
        import jax

        return jax.jit(jax.vmap(function, in_axes=(*(0,) * n_mapped, *(None,) * n_same)))

    def generator(self, rng: np.random.Generator) -> Any:
        """Turn a NumPy generator into PyTensor's JAX representation of it."""
        # PyTensor refuses a generator as a checked argument on JAX, but accepts this unchecked one.
        from pytensor.link.jax.dispatch.basic import jax_typify

        return self.restore_generator(jax_typify(rng))

    def generator_state(self, rng: Any) -> dict[str, Any]:
        import jax

        return jax.tree.map(np.asarray, rng)

    def restore_generator(self, state: dict[str, Any]) -> Any:
        import jax

        return jax.tree.map(jax.numpy.asarray, state)


def backend_of(mode: Mode) -> Backend:
    """Return the backend that a compilation mode runs on, or raise an error if there is none."""
    refuse_linker(mode)
    return Jax() if isinstance(mode.linker, JAXLinker) else Host()


def refuse_linker(mode: Mode) -> None:
    """Raise an error for a mode whose linker belongs to none of these backends, or cannot run."""
    linker = mode.linker
    if isinstance(linker, JITLinker) and not isinstance(linker, JAXLinker | NumbaLinker):
        raise ValueError(
            f"compile_kwargs={{'mode': ...}}: steps do not run with {type(linker).__name__}. Pass "
            "the mode 'NUMBA', 'JAX' or, for the C compiler, 'CVM', or leave compile_kwargs= out."
        )
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined] # set while numba is imported
        raise ValueError(
            "NUMBA_DISABLE_JIT=1 is set, with which neither PyTensor's numba backend nor what "
            "shuffles the rows can run: unset it. To debug a model without compiled code, pass "
            "compile_kwargs={'mode': 'FAST_COMPILE'}."
        )


def check_compile_kwargs(value: Any) -> None:
    """Raise an error unless a value is a dict of compilation arguments with a mode for steps."""
    if not isinstance(value, Mapping | None):
        example = "{'mode': 'JAX'}"
        raise ValueError(f"compile_kwargs={shown(value)} must be a dict such as {example}.")
    with compile_lock:
        refuse_linker(get_mode((value or {}).get("mode")))


@contextmanager
def naming_a_remedy() -> Iterator[None]:
    """Add a remedy to errors about distributions and operations that PyTensor lacks for JAX."""
    try:
        yield
    except NotImplementedError as error:
        if "No JAX" not in str(error):
            raise
        reason = str(error).rstrip(".")
        raise NotImplementedError(
            f"{reason}. Numba has it: pass compile_kwargs={{'mode': 'NUMBA'}}."
        ) from error
