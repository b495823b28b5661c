"""Iterables of batches, as other libraries have them."""


class Loader:
    """A re-iterable of batches: dicts, tuples or arrays; it may drop the last rows."""

    def __init__(self, *arrays, batch_size=70, keys=None, drop_last=False):
        self.arrays, self.batch_size, self.keys = arrays, batch_size, keys
        self.total_size = len(arrays[0])
        self.stop = self.total_size // batch_size * batch_size if drop_last else self.total_size

    def __iter__(self):
        for k in range(0, self.stop, self.batch_size):
            parts = tuple(a[k : min(k + self.batch_size, self.stop)] for a in self.arrays)
            if self.keys:
                yield dict(zip(self.keys, parts, strict=True))
            else:
                yield parts if len(parts) > 1 else parts[0]
