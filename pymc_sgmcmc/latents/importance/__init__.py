"""Latent variables of rows, drawn by a recognition network and importance-weighted."""
