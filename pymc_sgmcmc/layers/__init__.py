"""Layers of neural networks that PyTensor lacks."""
