"""What this package uses of other packages beyond their public interface, by file and name.

`tests/contracts/test_internals.py` names what an upgrade has removed.
"""

import logging
from functools import cache
from importlib import import_module
from typing import Any

_log = logging.getLogger("pymc.sgmcmc")

_NUMBA = "pytensor.link.numba.dispatch"
_LIBRARY = "numba.core.codegen:JITCodeLibrary"

INTERNALS: dict[str, tuple[str, ...]] = {
    "backends/link_time_optimization.py": (
        f"{_LIBRARY}._optimize_functions",
        f"{_LIBRARY}._optimize_final_module",
        f"{_LIBRARY}._raise_if_finalized",
        f"{_LIBRARY}._ensure_finalized",
        f"{_LIBRARY}._finalize_dynamic_globals",
        f"{_LIBRARY}._finalize_final_module",
        f"{_LIBRARY}._get_module_for_linking",
        f"{_LIBRARY}._linking_libraries",
        f"{_LIBRARY}._final_module",
        f"{_LIBRARY}._shared_module",
        f"{_LIBRARY}._reload_init",
        f"{_LIBRARY}._dynamic_globals",
        f"{_LIBRARY}._codegen",
        f"{_LIBRARY}.get_pointer_to_function",
        f"{_LIBRARY}.serialize_using_object_code",
        "numba.core.codegen:JITCPUCodegen._library_class",
        "numba.core.codegen:JITCPUCodegen._data_layout",
        "numba.core.codegen:JITCPUCodegen._pass_builder",
        "numba.core.codegen:JITCPUCodegen.magic_tuple",
        "numba.core.codegen:JITCPUCodegen.set_env",
        "numba.core.compiler_lock:global_compiler_lock",
        "numba.core.environment:lookup_environment",
        "numba.core.registry:cpu_target.target_context",
        "llvmlite.binding.newpassmanagers:FunctionPassManager.add_sroa_pass",
        "llvmlite.binding.newpassmanagers:FunctionPassManager.add_simplify_cfg_pass",
        "llvmlite.binding.newpassmanagers:FunctionPassManager.add_dead_code_elimination_pass",
    ),
    "backends/shape_errors.py": ("numba.np.arrayobj:raise_with_shape_context",),
    "backends/generator_address.py": (
        "llvmlite.ir:Constant",
        "numba.core.cgutils:create_struct_proxy",
        "numba.core.types:NumPyRandomBitGeneratorType",
        "numba.core.types:NumPyRandomGeneratorType",
    ),
    "backends/low_overhead_linker.py": (
        "pytensor.link.numba.cache:compile_numba_function_src",
        "pytensor.link.numba.linker:NumbaLinker.jit_compile",
    ),
    "backends/software_prefetch.py": (
        "llvmlite.ir:FunctionType",
        "numba.core.cgutils:get_item_pointer",
        "numba.core.cgutils:get_or_insert_function",
        "numba.np.arrayobj:make_array",
    ),
    "backends/interrupts.py": ("numba.core.serialize:_numba_unpickle",),
    "backends/normals_numba.py": ("numba.np.random.generator_core:next_uint64",),
    # The mechanism by which PyTensor assigns an implementation to an operation.
    "backends/vectorized_math.py": (
        f"{_NUMBA}.basic:numba_njit",
        f"{_NUMBA}.basic:register_funcify_and_cache_key",
    ),
    "backends/random_operations.py": (
        f"{_NUMBA}.compile_ops:numba_deepcopy",
        f"{_NUMBA}.random:numba_core_rv_funcify",
    ),
    "backends/random_jax.py": (
        "pytensor.link.jax.dispatch.basic:jax_funcify",
        "pytensor.link.jax.dispatch.random:jax_sample_fn",
    ),
    "backends/backend.py": (
        "pytensor.link.basic:JITLinker.create_jitable_thunk",
        "pytensor.link.jax.dispatch.basic:jax_typify",
        "pytensor.link.jax.linker:JAXLinker",
    ),
    "batches/data_sources.py": ("numpy:memmap._mmap",),
    "pymc_internals.py": (
        "pymc.backends.base:MultiTrace.report",
        "pymc.backends.ndarray:NDArray._stats",
        "pymc.backends.report:SamplerReport._n_draws",
        "pymc.backends.report:SamplerReport._n_tune",
        "pymc.backends.report:SamplerReport._t_sampling",
        "pymc.model:Model._coords",
        "pymc.model:Model._dim_lengths",
        "pymc.sampling.mcmc:_quiet_logging",
        "pymc.step_methods.state:WithSamplingState._state_class",
        "pytensor.compile.executor:Function.vm",
    ),
    "run/progress.py": (
        "pymc.progress_bar:MCMCProgressBarManager._backend",
        "pymc.progress_bar:MCMCProgressBarManager._extract_stats",
        "pymc.progress_bar:MCMCProgressBarManager._show_progress",
        "pymc.progress_bar:MCMCProgressBarManager._tune_total",
    ),
    "step.py": (
        "pymc.step_methods.compound:BlockedStep._make_progressbar_update_functions",
        "pymc.step_methods.compound:BlockedStep._progressbar_config",
    ),
    "storage/chunks.py": ("zarr.core.metadata.v3:ArrayV3Metadata.encode_chunk_key",),
    "storage/metadata.py": ("zarr.core.buffer:cpu.Buffer.from_bytes",),
    "storage/recorded_store.py": ("zarr.core.buffer:default_buffer_prototype",),
}
"""Names by file, in the form ``module:name``; a name may be an attribute set by ``__init__``."""


def is_there(name: str) -> bool:
    """Whether a name in the table can be found."""
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            if not hasattr(found, part):
                return _is_set_by_init(found, part)
            found = getattr(found, part)
    except ImportError:
        return False
    return True


def _is_set_by_init(kind: Any, attribute: str) -> bool:
    classes = kind.__mro__ if isinstance(kind, type) else ()
    made_by = [vars(c).get(name) for c in classes for name in ("__init__", "__new__")]
    codes = [getattr(getattr(f, "__func__", f), "__code__", None) for f in made_by]
    return any(code is not None and attribute in code.co_names for code in codes)


@cache
def available(file: str, consequence: str) -> bool:
    """Whether everything that a file needs is available; if not, log the consequence once."""
    gone = [name for name in INTERNALS[file] if not is_there(name)]
    if gone:
        _log.warning(
            f"This version has no {', '.join(gone)}, which pymc_sgmcmc uses: {consequence}."
        )
    return not gone
