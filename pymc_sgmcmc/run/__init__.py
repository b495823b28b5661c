"""A run of `sample`: engines that advance chains, where they start, what comes out."""
