"""A numba linker whose functions are cheap to call and fast to compile."""

import warnings
from collections.abc import Callable

from numba import njit
from pytensor import config
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.random.type import RandomGeneratorType

from pymc_sgmcmc.backends.generator_address import addresses, generator_at
from pymc_sgmcmc.backends.link_time_optimization import link_time_optimization

OBJECT_MODE = "Numba will use object mode"
"""Start of PyTensor's warning about an operation that numba does not support."""
VERSION = 2
"""Version of the outermost function in numba's cache."""


class CheapCalls(NumbaLinker):
    """PyTensor's numba linker with a different outermost function.

    PyTensor's function has ``*args``, whose types numba looks up in Python at each call: 200 us for
    ten arguments. This one has a fixed number of arguments, and takes a generator by its addresses.
    It also releases Python's lock, so that other threads can run.
    """

    def fgraph_convert(self, fgraph, **kwargs):
        """Translate the graph, and note whether any of it runs in Python."""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            translated = super().fgraph_convert(fgraph, **kwargs)
        self.runs_python = any(OBJECT_MODE in str(warning.message) for warning in seen)
        for warning in seen:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        return translated

    def jit_compile(self, fn_and_cache) -> Callable:
        """Compile, or load from PyTensor's cache on disk."""
        fn, cache_key = fn_and_cache
        if cache_key is not None:  # this module's name and version are part of the key
            cache_key = f"{cache_key}_{__name__}_{VERSION}_fastmath{int(config.numba__fastmath)}"
        names, taken, given, made = [], [], [], []
        for k, variable in enumerate(self.fgraph.inputs):
            names.append(f"x{k}")
            if isinstance(variable.type, RandomGeneratorType):
                taken += [f"bits{k}", f"itself{k}"]
                given.append(f"*addresses(x{k})")
                made.append(f"generator_at(bits{k}, itself{k})")
            else:
                taken.append(f"x{k}")
                given.append(f"x{k}")
                made.append(f"x{k}")
        cheap_call = compile_numba_function_src(
            f"def cheap_call({', '.join(taken)}):\n    return fn({', '.join(made)})",
            "cheap_call",
            # the cache on disk needs the module
            {"fn": fn, "generator_at": generator_at, "__name__": __name__},
            cache_key=cache_key,
        )
        compiled = njit(cheap_call, nogil=True, cache=cache_key is not None)
        compile_types = compiled.compile

        def compile_linked(signature):
            with link_time_optimization():
                return compile_types(signature)

        compiled.compile = compile_linked
        scope = {"compiled": compiled, "addresses": addresses}
        source = f"def call({', '.join(names)}):\n    return compiled({', '.join(given)})"
        exec(source, scope)
        scope["call"].runs_python = self.runs_python
        return scope["call"]
