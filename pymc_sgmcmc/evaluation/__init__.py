"""How well a model with local latent variables predicts rows, and what it makes of missing ones."""
