"""Which rows come next: shuffled, prefetched or streamed, independently of the model."""
