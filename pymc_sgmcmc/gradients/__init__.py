"""The stochastic gradient of a model: which arrays hold rows, and each term for a batch of them."""
