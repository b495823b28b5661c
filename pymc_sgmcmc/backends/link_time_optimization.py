"""Link-time optimisation for numba: only the outermost function is compiled to machine code.

numba optimises and compiles each function together with everything it calls, and again as part of
each of its callers: about ten times in a graph with a scan. Here inner functions remain LLVM code;
they are linked into the outermost one, which is optimised and compiled once, so the first step is
ready in less than half the time.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite.binding.newpassmanagers import FunctionPassManager
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target

from pymc_sgmcmc.backends.compile_time import rare_collections
from pymc_sgmcmc.backends.shape_errors import short_shape_errors

VERSION = 1
"""Version of what is stored in numba's cache on disk."""


class LateLibrary(JITCodeLibrary):
    """A function's code, which is linked and optimised only when its address is requested.

    numba has no option for this, so the steps that complete a function are overridden.
    """

    def __init__(self, codegen, name):
        super().__init__(codegen, name)
        self._is_linked = self._is_native = False
        self._environments: list = []

    @property
    def codegen(self):
        """The object on which numba calls `set_env`: this one until there is machine code."""
        return super().codegen if self._is_native else self

    def set_env(self, name, environment):
        """Do nothing: `_make_native` sets the environments."""

    def _optimize_functions(self, ll_module):
        """Only simplify the code, which is copied into each caller that is cached on disk.

        Dead code must also be removed, because numba does not cache a function that contains
        addresses.
        """
        ll_module.data_layout = self._codegen._data_layout
        passes = FunctionPassManager()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.add_dead_code_elimination_pass()
        builder = self._codegen._pass_builder()
        for function in ll_module.functions:
            if not function.is_declaration:
                passes.run(function, builder)

    def finalize(self):
        """Complete the function's own code, without what it calls."""
        self._raise_if_finalized()
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalize_final_module()

    def _finalize_final_module(self):
        if self._shared_module is not None:  # from the cache on disk, already machine code
            self._is_linked = self._is_native = True
            super()._finalize_final_module()
            return
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name):
        """Compile the code and return the function's address, or 0 if it is not defined here."""
        self._ensure_finalized()
        if not self._is_native:
            defined = {f.name for f in self._final_module.functions if not f.is_declaration}
            if name not in defined:
                return 0
            self._make_native()
        return super().get_pointer_to_function(name)

    def _get_module_for_linking(self):
        self._ensure_finalized()
        self._link()
        return super()._get_module_for_linking()

    def _link(self) -> None:
        """Link each library that is called, directly or indirectly, once."""
        if self._is_linked:
            return
        for library in _callers_first(self):
            if library is self:
                continue
            module = JITCodeLibrary._get_module_for_linking(library)
            if not _is_whole(library):
                library._shared_module = None  # not final: more will be linked into it
            self._final_module.link_in(module, preserve=True)
        self._is_linked = True
        self._finalize_dynamic_globals()

    @property
    def has_dynamic_globals(self) -> bool:
        """Whether it contains addresses of this process, now or once it is linked.

        numba then does not store it on disk, where other processes would find it.
        """
        self._ensure_finalized()
        return any(library._dynamic_globals for library in _callers_first(self))

    def _make_native(self) -> None:
        """Optimise and compile: what numba does immediately with every function."""
        self._link()
        self._shared_module = None
        self._optimize_final_module()
        self._final_module.verify()
        self._is_native = True
        self._dynamic_globals = []  # optimisation may have removed some
        super()._finalize_final_module()
        for variable in self._final_module.global_variables:
            if environment := lookup_environment(variable.name):
                self._environments.append(environment)  # numba holds only weak references
                super().codegen.set_env(variable.name, environment)

    def serialize_using_object_code(self):
        """Return what the cache on disk stores: LLVM code of inner functions, else machine code."""
        if self._is_native:
            return super().serialize_using_object_code()
        return self.name, "bitcode", self._get_module_for_linking().as_bitcode()


def _is_whole(library: JITCodeLibrary) -> bool:
    """Return whether everything that a function calls is linked into its library."""
    return not isinstance(library, LateLibrary) or library._is_linked


def _callers_first(library: JITCodeLibrary) -> list[JITCodeLibrary]:
    """Order a library and its dependencies, since LLVM drops code without an earlier reference."""
    seen, ended = set(), []

    def visit(library):
        if library not in seen:
            seen.add(library)
            for called in () if _is_whole(library) else library._linking_libraries:
                visit(called)
            ended.append(library)

    visit(library)
    return ended[::-1]


@contextmanager
def link_time_optimization() -> Iterator[None]:
    """Make numba compile functions with `LateLibrary`, and cache them separately on disk."""
    codegen = cpu_target.target_context.codegen()
    with global_compiler_lock, short_shape_errors(), rare_collections():
        library_class, machine = codegen._library_class, codegen.magic_tuple()
        codegen._library_class = LateLibrary
        codegen.magic_tuple = lambda: (*machine, __name__, VERSION)
        try:
            yield
        finally:
            codegen._library_class = library_class
            del codegen.magic_tuple
