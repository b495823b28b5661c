"""Data that stays on disk: arrays, whose rows are accessed by index, and iterables of batches."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from mmap import ALLOCATIONGRANULARITY
from typing import Any

import numpy as np
from scipy.sparse import issparse

EMPTY_BATCHES = 10_000
"""Number of consecutive batches without rows after which an iterable counts as endless."""
type Pieces = Iterator[dict[str, np.ndarray]]
"""Consecutive rows by container, the same number for all containers."""


class ArraySource:
    """An array whose rows can be accessed by index: memory map, zarr, HDF5, or any array-like."""

    def __init__(self, name: str, array: Any):
        self.names = (name,)
        self.label = f"data['{name}']"
        self.may_miss = 0
        if len(array.shape) == 0:
            raise ValueError(
                f"data['{name}'] is a scalar: pass an array with rows on its first axis."
            )
        self.n_rows = int(array.shape[0])
        chunks = getattr(array, "chunks", None)  # zarr and HDF5 read whole chunks
        self.chunk = int(chunks[0]) if chunks and isinstance(chunks[0], int) else 1
        self._open = _reopener(array)
        self._array = array.view(np.ndarray) if isinstance(array, np.memmap) else array
        self._process: int | None = os.getpid()

    @property
    def in_memory(self) -> np.ndarray | None:
        """The array itself, if it is in memory or mapped to it."""
        if not isinstance(self._array, np.ndarray):
            return None
        return _as_array(self._array, self.names[0])

    def read(self, start: int, stop: int) -> tuple[np.ndarray]:
        """Read consecutive rows."""
        if self._open is not None and self._process != os.getpid():
            self._array = self._open()
            self._process = os.getpid()
        return (_as_array(self._array[start:stop], self.names[0]),)

    def passage(self) -> "ArraySource":
        """Return the source itself, because its rows can be read in any order."""
        return self

    def ready(self, start: int) -> int:
        """Return the number of rows that can be read from there on."""
        return self.n_rows - start

    def __getstate__(self):
        # Data on disk are opened again in the other process, never copied.
        return self.__dict__ | ({} if self._open is None else {"_array": None, "_process": None})


def _reopener(array: Any) -> Callable[[], Any] | None:
    """Return how another process opens the same data, or None if it must be sent a copy."""
    base = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap) and base.filename is not None:
            # Where the view begins in the file, which NumPy knows only for the first memmap.
            mapped = np.frombuffer(base._mmap, dtype=np.uint8)  # type: ignore[attr-defined]
            page = base.offset - base.offset % ALLOCATIONGRANULARITY
            begin = page + array.ctypes.data - mapped.ctypes.data
            layout = (array.dtype, array.shape, array.strides, begin)
            return partial(_open_memmap, os.path.abspath(base.filename), *layout)
        base = base.base
    if type(array).__module__.partition(".")[0] == "h5py":
        return partial(_open_hdf5, os.path.abspath(array.file.filename), array.name)
    return None


def _open_memmap(path, dtype, shape, strides, begin):
    data = np.memmap(path, dtype=np.uint8, mode="r")
    return np.ndarray(shape, dtype, buffer=data, offset=begin, strides=strides)


def _open_hdf5(path, name):
    import h5py

    return h5py.File(path, "r")[name]


class IterableSource:
    """An iterable of batches, of one container or several, that can be read repeatedly."""

    def __init__(self, names: tuple[str, ...] | None, iterable: Iterable, n_rows: int | None):
        label = f"data[{names[0] if names and len(names) == 1 else names!r}]" if names else "data="
        self.label = label
        if not hasattr(iterable, "__iter__") or isinstance(iterable, str | bytes):
            raise TypeError(
                f"{label} is a {type(iterable).__name__}: pass an array (with shape, dtype and "
                "slicing) or an iterable of batches."
            )
        if iter(iterable) is iterable:
            raise ValueError(
                f"{label} is a {type(iterable).__name__}, which can be read only once, but every "
                "epoch reads it again. Pass an object whose __iter__ starts again at each call."
            )
        self.iterable = iterable
        self.keys = names is None  # each batch is a dict
        self.names: tuple[str, ...] = names or ()
        first = next(self.batches(), None)
        if first is None:
            raise ValueError(f"{label} yields no batches: pass an iterable that is not empty.")
        stated = {
            name: int(value)
            for name in ("total_size", "n_rows")
            if isinstance(value := getattr(iterable, name, None), int | np.integer)
        }
        if n_rows is not None:
            stated["n_rows="] = n_rows
        if not stated:
            raise ValueError(
                f"The number of rows of {label} is unknown: it has neither total_size nor "
                "n_rows. Pass StreamedData(..., n_rows=...)."
            )
        if len(set(stated.values())) > 1:
            raise ValueError(
                f"The number of rows of {label} is ambiguous: {stated}. Make these numbers equal."
            )
        [self.n_rows] = set(stated.values())
        # A loader may drop the rows that do not fill its last batch.
        batch_size = getattr(iterable, "batch_size", None)
        self.may_miss = int(batch_size) - 1 if isinstance(batch_size, int | np.integer) else 0

    def batches(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the batches of one pass, each as one array per container."""
        for batch in self.iterable:
            if self.keys:
                if not isinstance(batch, Mapping):
                    raise TypeError(
                        f"data= yields a {type(batch).__name__} instead of a dict of containers. "
                        "Name the containers: data={name: iterable} for arrays, data={(name, "
                        "another): iterable} for tuples."
                    )
                self.names = self.names or tuple(map(str, batch))
                missing = set(self.names) - set(batch)
                if missing:
                    raise ValueError(
                        f"A batch of data= lacks the containers {sorted(missing)}: every batch "
                        "must have the same ones."
                    )
                parts = [batch[name] for name in self.names]
            elif len(self.names) == 1:
                parts = [batch]
            else:
                parts = list(batch)
                if len(parts) != len(self.names):
                    raise ValueError(
                        f"A batch of {self.label} has {len(parts)} arrays for the "
                        f"{len(self.names)} containers {', '.join(self.names)}."
                    )
            arrays = tuple(_as_array(p, n) for p, n in zip(parts, self.names, strict=True))
            lengths = {
                name: a.shape[0] if a.ndim else None
                for name, a in zip(self.names, arrays, strict=True)
            }
            if None in lengths.values() or len(set(lengths.values())) > 1:
                raise ValueError(
                    f"The arrays of a batch of {self.label} must have the same number of rows, got "
                    + ", ".join(f"{n} for '{name}'" for name, n in lengths.items())
                    + " (None: a scalar)."
                )
            yield arrays

    def passage(self) -> "IterablePass":
        """Begin a pass."""
        return IterablePass(self)


class IterablePass:
    """One pass over an iterable, with its batches split into pieces of any length."""

    def __init__(self, source: IterableSource):
        self.source = source
        self._batches = source.batches()
        self._batch: tuple[np.ndarray, ...] | None = None
        self._used = 0

    def ready(self, start: int) -> int:
        """Return the number of rows left in the current batch, 0 at the end of the pass."""
        n_empty = 0
        while self._batch is None or self._used == len(self._batch[0]):
            self._batch = next(self._batches, None)
            self._used = 0
            if self._batch is None:
                return 0
            n_empty = 0 if len(self._batch[0]) else n_empty + 1
            if n_empty == EMPTY_BATCHES:
                raise ValueError(
                    f"{self.source.label} yields empty batches without end, {n_empty} of them "
                    f"after {start} rows: check that its __iter__ starts again at each call and "
                    "that its batches have rows."
                )
        return len(self._batch[0]) - self._used

    def read(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Take the next rows of the current batch."""
        assert self._batch is not None  # the caller has asked `ready` how many there are
        piece = slice(self._used, self._used + stop - start)
        self._used = piece.stop
        return tuple(array[piece] for array in self._batch)


class Passage:
    """One pass over sources whose rows belong together."""

    def __init__(self, sources: Sequence[ArraySource | IterableSource]):
        self.sources = sources
        self._passes = [source.passage() for source in sources]

    def pieces(self, start: int, stop: int) -> Pieces:
        """Yield rows ``start`` to ``stop``, or to the end; for iterables they must be the next."""
        while start < stop:
            ready = [reader.ready(start) for reader in self._passes]
            count = min(stop - start, *ready)
            if count == 0:
                for source, n in zip(self.sources, ready, strict=True):
                    if n == 0 and start < source.n_rows - source.may_miss:
                        raise ValueError(
                            f"{source.label} ended after {start} rows instead of {source.n_rows}. "
                            "Correct total_size or n_rows, or check that every pass over the "
                            "iterable yields all rows."
                        )
                return
            yield {
                name: rows
                for source, reader in zip(self.sources, self._passes, strict=True)
                for name, rows in zip(source.names, reader.read(start, start + count), strict=True)
            }
            start += count

    def finish(self) -> None:
        """Raise an error if an iterable yields more rows than stated."""
        for source, reader in zip(self.sources, self._passes, strict=True):
            if reader.ready(source.n_rows):
                raise ValueError(
                    f"{source.label} yields more than the stated {source.n_rows} rows. Correct "
                    "total_size or n_rows: the likelihood is scaled by it."
                )


def refuse_nan_rows(name: str, rows: np.ndarray) -> None:
    """Raise an error for rows with NaN."""
    if rows.dtype.kind == "f":
        with np.errstate(all="ignore"):
            suspicious = not np.isfinite(rows.sum())  # cheaper than a test of each value
        if suspicious and (n_missing := int(np.isnan(rows).sum())):
            raise ValueError(
                f"data['{name}'] has {n_missing} NaN values in the {len(rows)} rows just read: "
                "drop or impute them."
            )


def _as_array(rows: Any, name: str) -> np.ndarray:
    if issparse(rows):
        raise ValueError(
            f"The rows of '{name}' are a sparse array ({type(rows).__name__}), but streamed rows "
            "are dense. Pass an iterable whose batches are made dense one by one (toarray()), or "
            "leave the sparse array in memory, in a product of pytensor.sparse."
        )
    if np.ma.is_masked(rows):
        raise ValueError(f"The rows of '{name}' have masked values: drop or impute them.")
    return np.asarray(rows)
