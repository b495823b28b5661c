"""A numba linker whose compiled functions are cheap to call."""

from numba import njit
from pytensor import config
from pytensor.compile.mode import Mode
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.linker import NumbaLinker

import pymc_sgmcmc.backends.gather_rows
import pymc_sgmcmc.backends.matrix_vector  # both register their rewrites
import pymc_sgmcmc.backends.normals  # noqa: F401 (tells PyTensor how numba draws them)


class CheapCalls(NumbaLinker):
    """PyTensor's numba linker, but for the outermost function.

    PyTensor's takes ``*args``, whose types numba looks up in Python at each call: 200 us for ten
    arguments. This one has a fixed number of them. It also lets other threads run meanwhile.
    """

    def jit_compile(self, fn_and_cache):
        """Compile, or take from PyTensor's cache on disk."""
        fn, cache_key = fn_and_cache
        if cache_key is not None:  # what is cached names this module
            cache_key = f"{cache_key}_{__name__}_fastmath{int(config.numba__fastmath)}"
        names = ", ".join(f"x{k}" for k in range(len(self.fgraph.inputs)))
        call = compile_numba_function_src(
            f"def cheap_call({names}):\n    return fn({names})",
            "cheap_call",
            {"fn": fn, "__name__": __name__},  # the cache on disk asks for the module
            cache_key=cache_key,
        )
        return njit(call, nogil=True, cache=cache_key is not None)


def with_cheap_calls(mode: Mode) -> Mode:
    """Return the mode with this linker in place of PyTensor's numba linker."""
    if type(mode.linker) is NumbaLinker:
        mode = mode.including("gather_rows", "matrix_vector")
        return Mode(CheapCalls(), mode.provided_optimizer)
    return mode
