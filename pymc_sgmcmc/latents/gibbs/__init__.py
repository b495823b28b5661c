"""Latent variables of rows drawn by Gibbs sampling within the gradient."""
