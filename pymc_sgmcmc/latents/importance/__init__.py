"""Local latent variables weighed after draws from a recognition network."""
