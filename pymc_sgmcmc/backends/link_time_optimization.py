"""numba's functions with link-time optimisation: machine code is made once, of the outermost.

numba optimises and translates each function together with all that it calls, and then again as
part of each of its callers: in a graph with a scan some ten times. Here inner functions stay as
they were written; what the outermost one calls is linked, optimised and translated with it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite.binding.newpassmanagers import FunctionPassManager
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target

from pymc_sgmcmc.backends.shape_errors import short_shape_errors


class LateLibrary(JITCodeLibrary):
    """A function's code, linked and optimised where its address is asked for.

    numba has no option for it; this overrides what its libraries do when a function is complete.
    """

    def __init__(self, codegen, name):
        super().__init__(codegen, name)
        self._is_linked = self._is_native = False
        self._environments: list = []

    @property
    def codegen(self):
        """Where numba sets a function's environment: none has an address before it is native."""
        return super().codegen if self._is_native else self

    def set_env(self, name, environment):
        """Do nothing yet; see `_make_native`."""

    def _optimize_functions(self, ll_module):
        """Only shorten what has been written: it is copied into each caller that is kept on disk.

        What is never read must go, too: numba does not cache a function with addresses in it.
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
        """End the function's own code."""
        self._raise_if_finalized()
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalize_final_module()

    def _finalize_final_module(self):
        if self._shared_module is not None:  # it comes from the cache on disk, all in machine code
            self._is_linked = self._is_native = True
            super()._finalize_final_module()
            return
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name):
        """Make the code native if it has this function; inner ones have none for Python."""
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
        """Link what is called, directly or not, once each."""
        if self._is_linked:
            return
        for library in _callers_first(self):
            if library is self:
                continue
            module = JITCodeLibrary._get_module_for_linking(library)
            if not _is_whole(library):
                library._shared_module = None  # it will be another when it is
            self._final_module.link_in(module, preserve=True)
        self._is_linked = True

    def _make_native(self) -> None:
        """Do what numba does at once with every function."""
        self._link()
        self._shared_module = None
        self._optimize_final_module()
        self._final_module.verify()
        self._is_native = True
        self._dynamic_globals = []  # some are gone
        super()._finalize_final_module()
        for variable in self._final_module.global_variables:
            if environment := lookup_environment(variable.name):
                self._environments.append(environment)  # numba's own table of them is a weak one
                super().codegen.set_env(variable.name, environment)

    def serialize_using_object_code(self):
        """What a cache on disk keeps: of inner functions no machine code, for there is none."""
        if self._is_native:
            return super().serialize_using_object_code()
        return self.name, "bitcode", self._get_module_for_linking().as_bitcode()


def _is_whole(library: JITCodeLibrary) -> bool:
    """Whether all that a function calls is in its library."""
    return not isinstance(library, LateLibrary) or library._is_linked


def _callers_first(library: JITCodeLibrary) -> list[JITCodeLibrary]:
    """Order a library and those it needs: LLVM leaves out what nothing linked before asks for."""
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
    """Compile functions of numba's with `LateLibrary`."""
    codegen = cpu_target.target_context.codegen()
    with global_compiler_lock, short_shape_errors():
        before = codegen._library_class
        codegen._library_class = LateLibrary
        try:
            yield
        finally:
            codegen._library_class = before
