"""Latent variables local to the rows, integrated out of the gradient by Monte Carlo."""
