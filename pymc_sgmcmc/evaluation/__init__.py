"""Evaluation of models with latent variables of rows: predicted rows and missing elements."""
