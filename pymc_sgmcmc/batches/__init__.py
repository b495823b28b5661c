"""Which rows come next: shuffled, prefetched or streamed. Knows no model."""
