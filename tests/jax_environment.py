"""How JAX compiles in tests and in processes that they start. It reads this when it is imported."""

import os
import tempfile

JAX_CACHE = "JAX_COMPILATION_CACHE_DIR"
"""XLA compiles each program once for all processes of a run, those that tests start too."""

OWN_JAX_CACHE = None if JAX_CACHE in os.environ else tempfile.mkdtemp(prefix="jax_cache_")
if OWN_JAX_CACHE:
    os.environ[JAX_CACHE] = OWN_JAX_CACHE
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Where JAX is only what compiles fastest, XLA need not optimise: a fifth of a first call's time.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
