"""`StreamedData`: data that does not fit into memory, read in shuffled windows."""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_sgmcmc.batches.data_sources import ArraySource, IterableSource, Passage
from pymc_sgmcmc.number_checks import whole_number

WINDOW_BYTES = 2**26
"""Default size of a shuffle window in bytes, 64 MiB: memory holds two windows and a block."""
WINDOW_ROWS = (1024, 2**18)
"""Smallest and largest default number of rows of a window, which limit the effect of `WINDOW_BYTES`
for very long and very short rows."""
CHUNK_BYTES = 2**17
"""Default size of a chunk of consecutive rows in bytes, 128 KiB, as Linux reads ahead."""
CHUNKS_PER_WINDOW = 256
"""Smallest default number of chunks in a window, so that a window has rows from many places."""


@dataclass(frozen=True)
class Format:
    """Type and shape in which the rows of one container reach the compiled updates."""

    dtype: np.dtype
    shape: tuple[int, ...]
    """Shape of one row."""
    narrow: bool = False
    """Whether values may exceed the type's range, because the source has wider integers."""

    @property
    def row_bytes(self) -> int:
        """Size of one row in bytes."""
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


class StreamedData:
    """Data that does not fit into memory, for ``data=`` of a step.

    The rows are read in windows. A window is filled with chunks of consecutive rows and shuffled;
    batches are taken from one window after the other, while a thread reads the next one. Each row
    is used once per epoch. An array is divided into as many equal strata as a window has chunks,
    and every window takes a random chunk of each, so that sorted data do no harm. An iterable is
    read in its own order, and a window is a run of consecutive rows: it should yield rows in random
    order (see the page on streaming for the size of the bias, and `shuffle_on_disk` for a remedy).

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
        For an iterator that can be read only once, an unknown number of rows, sources of different
        lengths, or a chunk larger than the window. The message names the source and the remedy.

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
        default = min(max(WINDOW_BYTES // row_bytes, WINDOW_ROWS[0]), WINDOW_ROWS[1])
        self.window = min(window or default, self.n_rows)
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
        """Number of bytes of one row of all containers together."""
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
        An error names a container that they do not fit, both types or shapes, and the remedy.
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


def _sources(given: Any, n_rows: int | None) -> list[ArraySource | IterableSource]:
    """Return the source for each entry of ``data=``."""
    if not isinstance(given, Mapping):
        return [IterableSource(None, given, n_rows)]
    sources: list[ArraySource | IterableSource] = []
    for key, source in given.items():
        names = key if isinstance(key, tuple) else (key,)
        if not names or not all(isinstance(name, str) for name in names):
            raise TypeError(
                f"data= has the key {key!r}: pass the name of a container, or a tuple of names."
            )
        if hasattr(source, "to_numpy"):  # pandas and similar objects are in memory anyway
            source = source.to_numpy()
        by_row = all(hasattr(source, a) for a in ("shape", "dtype", "__getitem__"))
        if by_row and isinstance(key, str):
            sources.append(ArraySource(key, source))
        else:
            sources.append(IterableSource(names, source, n_rows))
    if not sources:
        raise ValueError(
            "data={} names no container: pass a dict of sources by the names of pm.Data containers."
        )
    named = [name for source in sources for name in source.names]
    for name in named:
        if named.count(name) > 1:
            raise ValueError(f"data= has two sources for the container '{name}': pass one.")
    return sources


def _check_rows(label: str, name: str, rows: np.ndarray | None) -> None:
    """Raise an error for a source without rows, or whose rows are not real numbers."""
    if rows is None:
        raise ValueError(f"{label} yields no rows: its batches are empty.")
    if rows.dtype.kind not in "biuf":
        raise ValueError(
            f"data['{name}'] has the type {rows.dtype}: its rows must be real numbers. Convert the "
            "source."
        )
