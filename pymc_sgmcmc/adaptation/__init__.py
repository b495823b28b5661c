"""The warm-up: start, metric, anchor, row weights, noise, step size and thin, then all frozen."""
