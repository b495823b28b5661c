"""What differs between numba, JAX and the C linker, and what is compiled better than usual."""
