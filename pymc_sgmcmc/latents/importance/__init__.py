"""Local latent variables, drawn by a recognition network and importance-weighted."""
