"""The samplers, one file per family, and the parts of the momentum samplers."""
