"""Exact draws from minibatch draws, and a certificate of the latter, by densities of all rows."""
