"""The samplers, one file a family, and what the momentum samplers are made of."""
