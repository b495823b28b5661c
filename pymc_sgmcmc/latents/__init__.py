"""Latent variables local to the rows: drawn or weighed, and integrated out of the gradient."""
