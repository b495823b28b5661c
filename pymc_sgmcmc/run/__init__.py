"""A run of `sample`: starting points, engines that advance chains, and results."""
