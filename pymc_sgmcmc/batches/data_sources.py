"""Data that stays on disk: arrays whose rows are looked up, and iterables of batches."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from mmap import ALLOCATIONGRANULARITY
from typing import Any

import numpy as np

WINDOW_BYTES = 2**26
"""Default size of a shuffle window: 64 MiB."""
WINDOW_ROWS = (1024, 2**18)
"""Its rows at least and at most."""
CHUNK_BYTES = 2**17
"""Default size of a chunk of consecutive rows: 128 KiB, what Linux reads ahead."""
CHUNKS_A_WINDOW = 256
"""So many at least, by default."""

type Pieces = Iterator[dict[str, np.ndarray]]
"""Consecutive rows by container, of one length for all containers."""


@dataclass(frozen=True)
class Format:
    """How the rows of one container travel to the compiled updates."""

    dtype: np.dtype
    shape: tuple[int, ...]
    """Of one row."""
    narrow: bool = False
    """Whether values may be out of the type's range: the source's integers are wider."""

    @property
    def row_bytes(self) -> int:
        """Size of one row."""
        return int(np.prod(self.shape, dtype=int)) * self.dtype.itemsize

    def check(self, name: str, rows: np.ndarray) -> None:
        """Refuse rows of another type or shape than the first, or beyond the type's range."""
        if rows.shape[1:] != self.shape:
            raise ValueError(
                f"data['{name}'] yields rows of the shape {rows.shape[1:]} among rows of the "
                f"shape {self.shape}."
            )
        if not np.can_cast(rows.dtype, self.dtype, "same_kind"):
            raise ValueError(
                f"data['{name}'] yields rows of type {rows.dtype} where the first were "
                f"{self.dtype}."
            )
        if self.narrow and rows.size:
            limits = np.iinfo(self.dtype)
            for value in (rows.min(), rows.max()):
                if not limits.min <= value <= limits.max:
                    raise ValueError(
                        f"data['{name}'] holds {value}, which the container's type {self.dtype} "
                        "cannot hold (pm.Data makes int16 of integers under floatX='float32'). "
                        "Make the placeholder of an unsigned type, for example uint32."
                    )


class ArraySource:
    """An array whose rows can be looked up: memory map, zarr, HDF5, or any array-like."""

    def __init__(self, name: str, array: Any):
        self.names = (name,)
        self.label = f"data['{name}']"
        self.may_miss = 0
        if len(array.shape) == 0:
            raise ValueError(f"data['{name}'] is a scalar: it needs an axis of rows.")
        self.n_rows = int(array.shape[0])
        chunks = getattr(array, "chunks", None)  # of zarr and HDF5: decoded as a whole
        self.chunk = int(chunks[0]) if chunks and isinstance(chunks[0], int) else 1
        self._open = _reopener(array)
        self._array = array.view(np.ndarray) if isinstance(array, np.memmap) else array
        self._process: int | None = os.getpid()

    def read(self, start: int, stop: int) -> tuple[np.ndarray]:
        """Read some consecutive rows."""
        if self._open is not None and self._process != os.getpid():
            self._array = self._open()
            self._process = os.getpid()
        return (_as_array(self._array[start:stop], self.names[0]),)

    def passage(self) -> "ArraySource":
        """Itself: its rows need no order."""
        return self

    def ready(self, start: int) -> int:
        """Rows that can be read from there on."""
        return self.n_rows - start

    def __getstate__(self):
        # Data on disk is opened again by whoever needs it, never copied.
        return self.__dict__ | ({} if self._open is None else {"_array": None, "_process": None})


def _reopener(array: Any) -> Callable[[], Any] | None:
    """How another process opens the same data, or None if it must be given a copy."""
    base = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap) and base.filename is not None:
            # Where the view begins in the file: numpy knows that of the first memmap only.
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
    """A re-iterable of batches, of one container or of several."""

    def __init__(self, names: tuple[str, ...] | None, iterable: Iterable, n_rows: int | None):
        label = f"data[{names[0] if names and len(names) == 1 else names!r}]" if names else "data="
        self.label = label
        if not hasattr(iterable, "__iter__"):
            raise TypeError(
                f"{label} is a {type(iterable).__name__}: neither an array (with shape, dtype and "
                "slices) nor an iterable of batches."
            )
        if iter(iterable) is iterable:
            raise ValueError(
                f"{label} is a {type(iterable).__name__}, which can be read only once, and each "
                "epoch reads it anew. Pass an object whose __iter__ begins again at each call."
            )
        self.iterable = iterable
        self.keys = names is None  # each batch is a dict
        self.names: tuple[str, ...] = names or ()
        first = next(self.batches(), None)
        if first is None:
            raise ValueError(f"{label} yields nothing.")
        told = {
            name: int(value)
            for name in ("total_size", "n_rows")
            if isinstance(value := getattr(iterable, name, None), int | np.integer)
        }
        if n_rows is not None:
            told["n_rows="] = n_rows
        if not told:
            raise ValueError(
                f"The number of rows of {label} is not known: it has neither total_size nor "
                "n_rows. Pass StreamedData(..., n_rows=...)."
            )
        if len(set(told.values())) > 1:
            raise ValueError(f"The number of rows of {label} is not clear: {told}.")
        [self.n_rows] = set(told.values())
        # A loader may drop the rows that do not fill its last batch.
        batch_size = getattr(iterable, "batch_size", None)
        self.may_miss = int(batch_size) - 1 if isinstance(batch_size, int | np.integer) else 0

    def batches(self) -> Iterator[tuple[np.ndarray, ...]]:
        """One pass; each batch as one array a container."""
        for batch in self.iterable:
            if self.keys:
                if not isinstance(batch, Mapping):
                    raise TypeError(
                        f"data= yields a {type(batch).__name__} and not a dict of containers. "
                        'Name what it yields: data={"X": iterable} for arrays, '
                        'data={("X", "y"): iterable} for tuples.'
                    )
                self.names = self.names or tuple(map(str, batch))
                missing = set(self.names) - set(batch)
                if missing:
                    raise ValueError(f"A batch of data= has no {sorted(missing)}.")
                parts = [batch[name] for name in self.names]
            elif len(self.names) == 1:
                parts = [batch]
            else:
                parts = list(batch)
                if len(parts) != len(self.names):
                    raise ValueError(
                        f"A batch of {self.label} has {len(parts)} parts, for the containers "
                        f"{', '.join(self.names)}."
                    )
            arrays = tuple(_as_array(p, n) for p, n in zip(parts, self.names, strict=True))
            lengths = {
                name: a.shape[0] if a.ndim else None
                for name, a in zip(self.names, arrays, strict=True)
            }
            if None in lengths.values() or len(set(lengths.values())) > 1:
                raise ValueError(
                    f"A batch of {self.label} must be arrays with the same number of rows, got "
                    + ", ".join(f"{n} for '{name}'" for name, n in lengths.items())
                    + " (None: a scalar)."
                )
            yield arrays

    def passage(self) -> "IterablePass":
        """Begin a pass."""
        return IterablePass(self)


class IterablePass:
    """One pass over an iterable, its batches cut into pieces of any length."""

    def __init__(self, source: IterableSource):
        self.source = source
        self._batches = source.batches()
        self._batch: tuple[np.ndarray, ...] | None = None
        self._used = 0

    def ready(self, start: int) -> int:
        """Rows at hand, from which on ``start`` says in vain; 0 at the end."""
        while self._batch is None or self._used == len(self._batch[0]):
            self._batch = next(self._batches, None)
            self._used = 0
            if self._batch is None:
                return 0
        return len(self._batch[0]) - self._used

    def read(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Take the next rows, of those at hand."""
        assert self._batch is not None  # `ready` has said how many there are
        cut = slice(self._used, self._used + stop - start)
        self._used = cut.stop
        return tuple(array[cut] for array in self._batch)


class Passage:
    """One pass over sources whose rows belong together."""

    def __init__(self, sources: Sequence[ArraySource | IterableSource]):
        self.sources = sources
        self._passes = [source.passage() for source in sources]

    def pieces(self, start: int, stop: int) -> Pieces:
        """Rows ``start`` to ``stop``, or to the end; of iterables these must be the next ones."""
        while start < stop:
            ready = [reader.ready(start) for reader in self._passes]
            count = min(stop - start, *ready)
            if count == 0:
                for source, n in zip(self.sources, ready, strict=True):
                    if n == 0 and start < source.n_rows - source.may_miss:
                        raise ValueError(
                            f"{source.label} ended after {start} rows, where it told "
                            f"{source.n_rows}. Correct total_size or n_rows. (If it begins anew "
                            "at each iter(): see that the second pass is as long as the first.)"
                        )
                return
            yield {
                name: rows
                for source, reader in zip(self.sources, self._passes, strict=True)
                for name, rows in zip(source.names, reader.read(start, start + count), strict=True)
            }
            start += count

    def finish(self) -> None:
        """Refuse an iterable that goes on after its last row."""
        for source, reader in zip(self.sources, self._passes, strict=True):
            if reader.ready(source.n_rows):
                raise ValueError(
                    f"{source.label} yields more rows than the {source.n_rows} it told. Correct "
                    "total_size or n_rows: the likelihood is scaled by it."
                )


def refuse_nan(name: str, rows: np.ndarray) -> None:
    """Refuse rows that hold NaN."""
    if rows.dtype.kind == "f":
        with np.errstate(all="ignore"):
            suspicious = not np.isfinite(rows.sum())  # cheaper than looking at each value
        if suspicious and (n_missing := int(np.isnan(rows).sum())):
            raise ValueError(
                f"data['{name}'] holds NaN ({n_missing} values in the {len(rows)} rows just "
                "read): drop or impute them."
            )


def _as_array(rows: Any, name: str) -> np.ndarray:
    if np.ma.is_masked(rows):
        raise ValueError(f"The rows of '{name}' have masked values: drop or impute them.")
    return np.asarray(rows)


def _default_window(row_bytes: int) -> int:
    return min(max(WINDOW_BYTES // row_bytes, WINDOW_ROWS[0]), WINDOW_ROWS[1])


def _sources(given: Any, n_rows: int | None) -> list[ArraySource | IterableSource]:
    """What each entry of ``data=`` is."""
    if not isinstance(given, Mapping):
        return [IterableSource(None, given, n_rows)]
    sources: list[ArraySource | IterableSource] = []
    for key, source in given.items():
        if hasattr(source, "to_numpy"):  # pandas and its like are in memory anyway
            source = source.to_numpy()
        by_row = all(hasattr(source, a) for a in ("shape", "dtype", "__getitem__"))
        if by_row and isinstance(key, str):
            sources.append(ArraySource(key, source))
        else:
            names = (key,) if isinstance(key, str) else tuple(key)
            sources.append(IterableSource(names, source, n_rows))
    if not sources:
        raise ValueError('data={} names no container: data={"X": source, "y": source}.')
    named = [name for source in sources for name in source.names]
    for name in named:
        if named.count(name) > 1:
            raise ValueError(f"data= has two sources for the container '{name}'.")
    return sources


class StreamedData:
    """Data that does not fit into memory, for ``data=`` of a step.

    The rows are read in windows. A window is filled with chunks of consecutive rows and shuffled;
    batches are cut from one window after the other, while a thread reads the next. Each row comes
    once an epoch. Of arrays, every window takes its chunks from all over the array: one at random
    from each of as many equal stretches, so that sorted data does no harm. An iterable is read in
    its own order, and a window is a stretch of it: what it yields should be in random order
    already (see the page on streaming for the size of the bias, `shuffle_on_disk` for a remedy).

    In memory are two windows, and a block of at most one window for each compiled call.

    Parameters
    ----------
    sources : mapping or iterable
        For each of the model's `pm.Data` containers with a row for each datum, by its name, an
        array: `numpy.memmap`, zarr array, HDF5 data set, anything with ``shape``, ``dtype`` and
        slices, rows first. Or an iterable of batches of any length that begins again at each
        ``iter()`` and has ``total_size`` or ``n_rows``; under a tuple of names, as in
        ``{("X", "y"): loader}``, if it yields tuples; or by itself if it yields dicts.
    n_rows : int, optional
        Number of rows N, where an iterable does not tell it.
    window : int, optional
        Rows in a shuffle window; at least the batch size. Default: 64 MiB of rows, but between
        1024 and 262144 rows.
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
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if value is not None and not (whole and value >= 1):
                raise ValueError(f"{option}={value!r} must be a whole number of rows, at least 1.")
        self.sources = _sources(sources, n_rows)
        self.by_row = all(isinstance(s, ArraySource) for s in self.sources)
        if chunk is not None and not self.by_row:
            raise ValueError(
                f"chunk={chunk} is for arrays whose rows are looked up; an iterable yields its "
                "batches in its own order. Leave it out."
            )
        self._check_lengths(n_rows)
        self.n_rows: int = self.sources[0].n_rows
        first = self.head(1)
        self.formats = {
            name: Format(rows.dtype.newbyteorder("="), rows.shape[1:])
            for name, rows in first.items()
        }
        row_bytes = self.row_bytes
        self.window = min(window or _default_window(row_bytes), self.n_rows)
        stored = max((s.chunk for s in self.sources if isinstance(s, ArraySource)), default=1)
        small = max(1, min(CHUNK_BYTES // row_bytes, self.window // CHUNKS_A_WINDOW))
        self.chunk = chunk or (min(stored, self.window) if stored > 1 else small)
        if self.chunk > self.window:
            raise ValueError(
                f"chunk={self.chunk} is larger than the shuffle window of {self.window} rows: "
                "choose it much smaller, so that a window holds rows from many places."
            )

    @classmethod
    def of(cls, data: Any) -> "StreamedData":
        """Return data as it is if it is `StreamedData`, else with the default window."""
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
        """First rows of each container: placeholders for `pm.Data` while the model is built.

        Parameters
        ----------
        n_rows : int, default 2
            How many; all if there are fewer.

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
        """Return the same data in the form in which it travels to these containers.

        Rows keep the source's type where that is no wider than the container's (uint8 pixels of a
        float container stay bytes until they are used), and are converted when read otherwise.

        Raises
        ------
        ValueError
            If a container cannot take the rows, naming it, both types or shapes, and the remedy.
        """
        formats = {}
        for name, (dtype, shape) in containers.items():
            source = self.formats[name]
            if source.shape != shape:
                raise ValueError(
                    f"data['{name}'] has rows of the shape {source.shape}, the container "
                    f"'{name}' of the model {shape}. Make the placeholder from data.head()."
                )
            if not np.can_cast(source.dtype, dtype, "same_kind"):
                raise ValueError(
                    f"data['{name}'] has the type {source.dtype}, which the container '{name}' of "
                    f"type {dtype} cannot take. Make the placeholder from data.head(), or convert "
                    "the source."
                )
            narrow = dtype.kind in "iu" and not np.can_cast(source.dtype, dtype, "safe")
            as_it_is = source.dtype.itemsize <= dtype.itemsize and source.dtype != np.float16
            travels = source.dtype if as_it_is and not narrow else dtype
            formats[name] = Format(travels, shape, narrow)
        fitted = copy(self)
        fitted.formats = formats
        return fitted

    def _check_lengths(self, n_rows: int | None) -> None:
        lengths = {source.label: source.n_rows for source in self.sources}
        if n_rows is not None:
            lengths["n_rows="] = n_rows
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {n}" for name, n in lengths.items())
            raise ValueError(f"The sources in data= have different numbers of rows: {told}.")
        if self.sources[0].n_rows < 1:
            raise ValueError(f"{self.sources[0].label} has {self.sources[0].n_rows} rows.")

    def __repr__(self):
        formats = ", ".join(f"{n}: {f.dtype} {f.shape}" for n, f in self.formats.items())
        chunk = f", chunk={self.chunk}" if self.by_row else ""
        return f"StreamedData({formats}; n_rows={self.n_rows}, window={self.window}{chunk})"
