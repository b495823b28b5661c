"""What differs between numba, JAX and the C linker, and operations compiled our own way."""
