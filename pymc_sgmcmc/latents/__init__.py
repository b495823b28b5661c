"""Latent variables local to the rows: drawn, weighed, integrated out, and predicted from."""
