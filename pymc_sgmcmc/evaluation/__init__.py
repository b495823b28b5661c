"""Evaluation of models with local latent variables: predicted rows and missing elements."""
