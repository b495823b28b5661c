"""Data that stays on disk: arrays, whose rows are accessed by index, and iterables of batches."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from mmap import ALLOCATIONGRANULARITY
from typing import Any

import numpy as np

from pymc_sgmcmc.argument_checks import whole_number

WINDOW_BYTES = 2**26
"""Default size of a shuffle window: 64 MiB."""
WINDOW_ROWS = (1024, 2**18)
"""Its smallest and largest default number of rows."""
CHUNK_BYTES = 2**17
"""Default size of a chunk of consecutive rows: 128 KiB, as much as Linux reads ahead."""
EMPTY_BATCHES = 10_000
"""Number of consecutive batches without rows after which an iterable is rejected."""
CHUNKS_PER_WINDOW = 256
"""Smallest default number."""

type Pieces = Iterator[dict[str, np.ndarray]]
"""Consecutive rows by container, the same number for all containers."""


@dataclass(frozen=True)
class Format:
    """Type and shape in which the rows of one container reach the compiled updates."""

    dtype: np.dtype
    shape: tuple[int, ...]
    """Of one row."""
    narrow: bool = False
    """Whether values may be out of the type's range, because the source has wider integers."""

    @property
    def row_bytes(self) -> int:
        """Size of one row."""
        return int(np.prod(self.shape, dtype=int)) * self.dtype.itemsize

    def check(self, name: str, rows: np.ndarray) -> None:
        """Raise an error for rows of a different type or shape, or outside the type's range."""
        if rows.shape[1:] != self.shape:
            raise ValueError(
                f"data['{name}'] yields rows of shape {rows.shape[1:]}, but the first rows had the "
                f"shape {self.shape}. All rows must have the same shape."
            )
        if not np.can_cast(rows.dtype, self.dtype, "same_kind"):
            raise ValueError(
                f"data['{name}'] yields rows of type {rows.dtype}, but the first rows had the "
                f"type {self.dtype}. Convert all rows to one type."
            )
        if self.narrow and rows.size:
            limits = np.iinfo(self.dtype)
            for value in (rows.min(), rows.max()):
                if not limits.min <= value <= limits.max:
                    raise ValueError(
                        f"data['{name}'] holds {value}, which the container's type {self.dtype} "
                        "cannot hold (under floatX='float32' pm.Data converts integers to int16). "
                        "Give the placeholder an unsigned type, for example uint32."
                    )


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

    def read(self, start: int, stop: int) -> tuple[np.ndarray]:
        """Read consecutive rows."""
        if self._open is not None and self._process != os.getpid():
            self._array = self._open()
            self._process = os.getpid()
        return (_as_array(self._array[start:stop], self.names[0]),)

    def passage(self) -> "ArraySource":
        """Return itself: its rows can be read in any order."""
        return self

    def ready(self, start: int) -> int:
        """Number of rows that can be read from there on."""
        return self.n_rows - start

    def __getstate__(self):
        # Data on disk is opened again in the other process, never copied.
        return self.__dict__ | ({} if self._open is None else {"_array": None, "_process": None})


def _reopener(array: Any) -> Callable[[], Any] | None:
    """Return how another process opens the same data, or None if it must be sent a copy."""
    base = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap) and base.filename is not None:
            # Where the view begins in the file: numpy knows this only for the first memmap.
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
        if not hasattr(iterable, "__iter__"):
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
                        'Name the containers: data={"X": iterable} for arrays, '
                        'data={("X", "y"): iterable} for tuples.'
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
        """Rows left in the current batch, 0 at the end; only the message uses ``start``."""
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
        cut = slice(self._used, self._used + stop - start)
        self._used = cut.stop
        return tuple(array[cut] for array in self._batch)


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


def refuse_nan(name: str, rows: np.ndarray) -> None:
    """Raise an error for rows with NaN."""
    if rows.dtype.kind == "f":
        with np.errstate(all="ignore"):
            suspicious = not np.isfinite(rows.sum())  # cheaper than looking at each value
        if suspicious and (n_missing := int(np.isnan(rows).sum())):
            raise ValueError(
                f"data['{name}'] has {n_missing} NaN values in the {len(rows)} rows just read: "
                "drop or impute them."
            )


def _as_array(rows: Any, name: str) -> np.ndarray:
    if np.ma.is_masked(rows):
        raise ValueError(f"The rows of '{name}' have masked values: drop or impute them.")
    return np.asarray(rows)


def _check_rows(label: str, name: str, rows: np.ndarray | None) -> None:
    """Raise an error for a source without rows, or whose rows are not real numbers."""
    if rows is None:
        raise ValueError(f"{label} yields no rows: its batches are empty.")
    if rows.dtype.kind not in "biuf":
        raise ValueError(
            f"data['{name}'] has the type {rows.dtype}: its rows must be real numbers. Convert the "
            "source."
        )


def _default_window(row_bytes: int) -> int:
    return min(max(WINDOW_BYTES // row_bytes, WINDOW_ROWS[0]), WINDOW_ROWS[1])


def _sources(given: Any, n_rows: int | None) -> list[ArraySource | IterableSource]:
    """Return the source for each entry of ``data=``."""
    if not isinstance(given, Mapping):
        return [IterableSource(None, given, n_rows)]
    sources: list[ArraySource | IterableSource] = []
    for key, source in given.items():
        if hasattr(source, "to_numpy"):  # pandas and similar objects are in memory anyway
            source = source.to_numpy()
        by_row = all(hasattr(source, a) for a in ("shape", "dtype", "__getitem__"))
        if by_row and isinstance(key, str):
            sources.append(ArraySource(key, source))
        else:
            names = (key,) if isinstance(key, str) else tuple(key)
            sources.append(IterableSource(names, source, n_rows))
    if not sources:
        raise ValueError(
            'data={} names no container: pass a dict such as data={"X": source, "y": source}.'
        )
    named = [name for source in sources for name in source.names]
    for name in named:
        if named.count(name) > 1:
            raise ValueError(f"data= has two sources for the container '{name}': pass one.")
    return sources


class StreamedData:
    """Data that does not fit into memory, for ``data=`` of a step.

    The rows are read in windows. A window is filled with chunks of consecutive rows and shuffled;
    batches are taken from one window after the other, while a thread reads the next one. Each row
    is used once per epoch. For arrays, the array is divided into as many equal strata as a window
    has chunks, and every window takes a random chunk of each, so that sorted data does no harm. An
    iterable is read in its own order, and a window is a run of consecutive rows: it should yield
    rows in random order (see the page on streaming for the size of the bias, and `shuffle_on_disk`
    for a remedy).

    Memory holds two windows, and a block of at most one window for each compiled call.

    Parameters
    ----------
    sources : mapping or iterable
        A source for each of the model's `pm.Data` containers that hold rows, by name. A source is
        an array (`numpy.memmap`, zarr array, HDF5 data set, anything with ``shape``, ``dtype`` and
        slicing, rows first), or an iterable of batches of any length that starts again at each
        ``iter()`` and has ``total_size`` or ``n_rows``. An iterable of tuples goes under a tuple of
        names, as in ``{("X", "y"): loader}``; an iterable of dicts is passed without a mapping.
    n_rows : int, optional
        Number of rows N, if an iterable does not state it.
    window : int, optional
        Rows per shuffle window, at least the batch size. Default: 64 MiB of rows, but between 1024
        and 262144 rows.
    chunk : int, optional
        Consecutive rows that are read together, for arrays. Default: the chunks of a zarr array
        or HDF5 data set; else 128 KiB of rows, but at most 1/256 of the window.

    Raises
    ------
    ValueError, TypeError
        Naming the source and the remedy: an iterator that can be read only once, an unknown
        number of rows, sources of different lengths, a chunk larger than the window.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm, tempfile
    >>> path = tempfile.mkdtemp()
    >>> rng = np.random.default_rng(0)
    >>> np.save(f"{path}/X.npy", rng.integers(256, size=(10_000, 3), dtype="uint8"))
    >>> np.save(f"{path}/y.npy", rng.normal(size=10_000))
    >>> data = sgm.StreamedData(
    ...     {name: np.load(f"{path}/{name}.npy", mmap_mode="r") for name in ["X", "y"]},
    ...     window=2048, chunk=64,
    ... )
    >>> data
    StreamedData(X: uint8 (3,), y: float64 (); n_rows=10000, window=2048, chunk=64)
    >>> with pm.Model():
    ...     X = pm.Data("X", data.head()["X"], dims=("obs", "pixel"))
    ...     y = pm.Data("y", data.head()["y"], dims="obs")
    ...     w = pm.Normal("w", dims="pixel")
    ...     likelihood = pm.Normal("likelihood", (X / 255) @ w, 1, observed=y, dims="obs")
    ...     step = sgm.MSGNHT_S(
    ...         step_size=1e-3, batch_size=100, data=data, compile_kwargs={"mode": "JAX"}
    ...     )
    """

    def __init__(
        self,
        sources: Mapping[str | tuple[str, ...], Any] | Iterable,
        *,
        n_rows: int | None = None,
        window: int | None = None,
        chunk: int | None = None,
    ):
        for option, value in {"n_rows": n_rows, "window": window, "chunk": chunk}.items():
            if value is not None:
                whole_number(option, value, 1, unit="rows")
        self.sources = _sources(sources, n_rows)
        self.by_row = all(isinstance(s, ArraySource) for s in self.sources)
        if chunk is not None and not self.by_row:
            raise ValueError(
                f"chunk={chunk} applies only to arrays; an iterable yields its batches in its own "
                "order. Leave chunk= out."
            )
        self._check_lengths(n_rows)
        self.n_rows: int = self.sources[0].n_rows
        first = self.head(1)
        for source in self.sources:
            for name in source.names:
                _check_rows(source.label, name, first.get(name))
        self.formats = {
            name: Format(rows.dtype.newbyteorder("="), rows.shape[1:])
            for name, rows in first.items()
        }
        row_bytes = self.row_bytes
        self.window = min(window or _default_window(row_bytes), self.n_rows)
        stored = max((s.chunk for s in self.sources if isinstance(s, ArraySource)), default=1)
        small = max(1, min(CHUNK_BYTES // row_bytes, self.window // CHUNKS_PER_WINDOW))
        self.chunk = chunk or (min(stored, self.window) if stored > 1 else small)
        if self.chunk > self.window:
            raise ValueError(
                f"chunk={self.chunk} is larger than the shuffle window of {self.window} rows: "
                "choose a much smaller one, so that a window has rows from many places."
            )

    @classmethod
    def of(cls, data: Any) -> "StreamedData":
        """Return `StreamedData` unchanged, and other data with the default window."""
        return data if isinstance(data, StreamedData) else cls(data)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the containers."""
        return tuple(name for source in self.sources for name in source.names)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all containers together."""
        return max(1, sum(format.row_bytes for format in self.formats.values()))

    def head(self, n_rows: int = 2) -> dict[str, np.ndarray]:
        """Return the first rows of each container, as placeholders for `pm.Data`.

        Parameters
        ----------
        n_rows : int, default 2
            Number of rows; all if there are fewer.

        Returns
        -------
        dict of arrays
            By the containers' names, with the sources' own types.
        """
        parts: dict[str, list[np.ndarray]] = {}
        for piece in Passage(self.sources).pieces(0, min(n_rows, self.sources[0].n_rows)):
            for name, rows in piece.items():
                parts.setdefault(name, []).append(rows)
        return {name: np.concatenate(rows) for name, rows in parts.items()}

    def fitted(self, containers: Mapping[str, tuple[np.dtype, tuple[int, ...]]]) -> "StreamedData":
        """Return the same data, to be read with types that fit these containers.

        Rows keep the source's type if it is no wider than the container's (uint8 pixels for a float
        container stay bytes until they are used); otherwise they are converted when they are read.

        Raises
        ------
        ValueError
            If the rows do not fit a container, naming it, both types or shapes, and the remedy.
        """
        formats = {}
        for name, (dtype, shape) in containers.items():
            source = self.formats[name]
            if source.shape != shape:
                raise ValueError(
                    f"data['{name}'] has rows of shape {source.shape}, but the container '{name}' "
                    f"of the model has rows of shape {shape}. Make the placeholder from "
                    "data.head()."
                )
            if not np.can_cast(source.dtype, dtype, "same_kind"):
                raise ValueError(
                    f"data['{name}'] has the type {source.dtype}, which the container '{name}' of "
                    f"type {dtype} cannot hold. Make the placeholder from data.head(), or convert "
                    "the source."
                )
            narrow = dtype.kind in "iu" and not np.can_cast(source.dtype, dtype, "safe")
            unchanged = source.dtype.itemsize <= dtype.itemsize and source.dtype != np.float16
            read_as = source.dtype if unchanged and not narrow else dtype
            formats[name] = Format(read_as, shape, narrow)
        fitted = copy(self)
        fitted.formats = formats
        return fitted

    def _check_lengths(self, n_rows: int | None) -> None:
        lengths = {source.label: source.n_rows for source in self.sources}
        if n_rows is not None:
            lengths["n_rows="] = n_rows
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {n}" for name, n in lengths.items())
            raise ValueError(
                f"The sources in data= have different numbers of rows: {shown}. They must be equal."
            )
        if self.sources[0].n_rows < 1:
            raise ValueError(
                f"{self.sources[0].label} has {self.sources[0].n_rows} rows: it needs at least one."
            )

    def __repr__(self):
        formats = ", ".join(f"{n}: {f.dtype} {f.shape}" for n, f in self.formats.items())
        chunk = f", chunk={self.chunk}" if self.by_row else ""
        return f"StreamedData({formats}; n_rows={self.n_rows}, window={self.window}{chunk})"
