"""Exact draws from minibatch draws, and a certificate of these, by densities of all rows."""
