"""Local latent variables drawn by Gibbs sampling within the gradient."""
