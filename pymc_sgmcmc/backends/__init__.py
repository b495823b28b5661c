"""Differences between numba, JAX and the C linker, and operations with our own implementation."""
