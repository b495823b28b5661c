"""Which rows come next: shuffled, prefetched or streamed. Independent of the model."""
