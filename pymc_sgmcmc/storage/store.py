"""Draws on disk, with everything that is needed to resume the run.

The store is a zarr group that xarray opens as the DataTree of the run. Beside its groups lies the
folder ``.sampler``: what the run is, and for each chain a checkpoint that says how many of its
draws count and holds the sampler's state after them. Every file is written under another name and
then renamed, draws before the checkpoint that counts them: whenever the process dies, what the last
checkpoint counts is whole, and anything beyond is made again.
"""

import copy
import logging
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from pymc.backends.base import BaseTrace
from pymc.exceptions import SamplingError
from pymc.step_methods.compound import flatten_steps
from xarray import DataTree

from pymc_sgmcmc.argument_checks import real_number, true_or_false
from pymc_sgmcmc.pymc_internals import saves_state
from pymc_sgmcmc.run.result import longest_cut
from pymc_sgmcmc.run.run import Run
from pymc_sgmcmc.run.saved_state import from_plain, load, save, to_plain
from pymc_sgmcmc.storage.checkpoints import Checkpoints
from pymc_sgmcmc.storage.chunks import GROUPS, check_chunks, open_draws
from pymc_sgmcmc.storage.file_errors import clear_errors
from pymc_sgmcmc.storage.identity import differences, identity, versions
from pymc_sgmcmc.storage.layout import lay_out, lengthened
from pymc_sgmcmc.storage.lock import Lock
from pymc_sgmcmc.storage.metadata import edited, mend
from pymc_sgmcmc.storage.recorder import StoredDraws
from pymc_sgmcmc.storage.writer import LEFT_OUT, Writer

_log = logging.getLogger("pymc.sgmcmc")

FORMAT = 2
RUN_LOCK = Path(".sampler", "run.lock")
BYTES_PER_CHUNK = 2**23
"""Draws are in chunks of about this size, all variables of a chain together,"""
DRAWS_PER_CHUNK = 256
"""... or of so many draws, where they are small."""
LOADED_BYTES = 100_000_000
"""A result up to this size is read into memory; a larger one stays on disk until it is used."""


class ZarrStore(BaseTrace):
    """Writes draws to disk while they are made, so that any run can be resumed.

    Pass it as ``trace=`` to `sample`, which can resume the run (``resume=True``) after Ctrl-C, an
    exception or ``kill -9``, exactly as if it had not been interrupted. Or pass it to `pm.sample`,
    inside the model's context: the draws can be read however the run ends, but PyMC cannot resume
    it. Requires ``zarr``.

    Parameters
    ----------
    path : str or pathlib.Path
        A folder that does not exist yet, or the folder of an earlier run.
    overwrite : bool, default False
        Whether to delete an existing run at this path.
    seconds : float, default 10.0
        Time between two checkpoints of a chain, which is the most that a crash can lose.
    dtype : str or numpy.dtype, optional
        Store real variables in this type, for example ``"float32"`` for half the size. The
        sampler's own precision does not change.

    Raises
    ------
    ValueError
        For ``seconds`` below 0, or a ``dtype`` that is not a real type. When a run begins: for a
        store of a different run than the one to resume.
    ImportError
        When a run begins, without zarr 3.1 or later.
    FileExistsError
        When a run begins: for a folder with other contents, or an existing run without ``resume``
        or ``overwrite``.

    Notes
    -----
    ``xarray.open_datatree(path, engine="zarr")`` opens the store at any time; draws that have not
    been made are NaN (0 for whole numbers). `to_datatree` leaves them out.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm, tempfile
    >>> path = tempfile.mkdtemp() + "/run.zarr"
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     step = sgm.MSGNHT_S(step_size=1e-2, batch_size=10, thin=10)
    ...     run = dict(tune=50, chains=2, step=step, random_seed=1, quiet=True)
    ...     idata = sgm.sample(50, trace=sgm.ZarrStore(path), **run)
    ...     longer = sgm.sample(80, trace=path, resume=True, **run)
    >>> np.array_equal(longer.posterior["mu"][:, :50], idata.posterior["mu"])
    True
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        overwrite: bool = False,
        seconds: float = 10.0,
        dtype: Any = None,
    ):
        self.path = Path(path)
        self.overwrite = true_or_false("overwrite", overwrite)
        self.run_id: str | None = None
        self._lock: Lock | None = None
        self._recorder: StoredDraws | None = None
        length = "a number of seconds, at least 0"
        self.seconds = real_number("seconds", seconds, length, lambda x: x >= 0)
        self.dtype = None if dtype is None else np.dtype(dtype)
        if self.dtype is not None and self.dtype.kind != "f":
            raise ValueError(f"dtype={dtype!r} must be a real type, such as 'float32'.")

    def __repr__(self):
        return f"ZarrStore({str(self.path)!r})"

    def __len__(self):
        return 0  # `pm.sample` refuses a trace with draws in it

    def __copy__(self):
        # `pm.sample` copies its trace argument for each chain: what it gets are recorders.
        if self._recorder is None:
            self._recorder = StoredDraws(store=self)
        return copy.copy(self._recorder)

    @property
    def exists(self) -> bool:
        """Whether there is a run at this path, finished or not.

        Returns
        -------
        bool
        """
        return self._record_path.exists()

    @property
    def _sampler(self) -> Path:
        return self.path / ".sampler"

    @property
    def _record_path(self) -> Path:
        return self._sampler / "run.npz"

    @property
    def record(self) -> dict[str, Any]:
        """What the run is: its identity, its numbers of draws, how it is laid out."""
        if not self.exists:
            lost = self.path.is_dir() and any(self.path.iterdir())
            raise FileNotFoundError(
                f"There is no run in {self.path}." if not lost else self._no_run()
            )
        try:
            record = load(self._record_path)
        except ValueError as error:
            raise ValueError(
                f"{error}. This file identifies the run, which cannot be resumed without it. "
                "Restore the file from a copy; or read the draws, xarray.open_datatree("
                f"{str(self.path)!r}, engine='zarr'); or start a new run, "
                f"ZarrStore({str(self.path)!r}, overwrite=True)."
            ) from error
        if record["format"] != FORMAT:
            raise ValueError(
                f"{self.path} has the format {record['format']}, but this version of pymc_sgmcmc "
                f"reads {FORMAT}. Use the version that wrote it, or another path."
            )
        if self.run_id is not None and record["run_id"] != self.run_id:
            raise self.taken_away()
        return record

    def taken_away(self) -> RuntimeError:
        """What to raise where another run lies in the place of this one."""
        return RuntimeError(
            f"{self.path} no longer belongs to this run: another process has started a run there, "
            "or deleted it. Give each run its own path."
        )

    def _no_run(self) -> str:
        return (
            f"{self.path} exists but is not a run of this package, or its file "
            f"{self._record_path.relative_to(self.path)} is missing. Restore that file, or choose "
            "another path."
        )

    # ---- beginning -------------------------------------------------------------------------

    def check(self, resume: bool) -> None:
        """Refuse a path that cannot be used, before any work is done."""
        self.run_id = None  # whatever lies there, it is not this run
        try:
            import zarr
        except ImportError as error:
            raise ImportError("A store needs zarr: pip install 'pymc-sgmcmc[zarr]'.") from error
        if int(zarr.__version__.split(".")[0]) < 3:
            raise ImportError(f"A store needs zarr 3.1 or later, and this is {zarr.__version__}.")
        if resume and self.overwrite:
            raise ValueError("resume=True and ZarrStore(overwrite=True) contradict each other.")
        for place in (self.path, *self.path.parents):
            if place.exists() and not place.is_dir():
                raise FileExistsError(
                    f"{self.path} cannot be a folder: {place} is a file. Choose another path."
                )
        if self.path.exists() and not self.exists and any(self.path.iterdir()):
            raise FileExistsError(self._no_run())
        if self.exists and not resume and not self.overwrite:
            record = self.record
            raise FileExistsError(
                f"{self.path} has a run of {record['draws']} draws and {record['chains']} chains, "
                f"of which {min(self.n_draws)} draws are complete. resume=True continues it, "
                "ZarrStore(path, overwrite=True) deletes it."
            )
        with clear_errors(self.path, self.exists):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            folder = self.path if resume and self.exists else self.path.parent
            probe = folder / f".probe-{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()

    def begin(self, run: Run, tree: DataTree) -> list[str]:
        """Lay out a new run, or check that this is the run that lies there.

        Parameters
        ----------
        run : Run
        tree : DataTree
            The result as it will be, but of one chain and one draw.

        Returns
        -------
        list of str
            What the user should know.

        Raises
        ------
        ValueError
            If another run lies there, naming what differs.
        """
        for step in flatten_steps(run.step):
            if not saves_state(step):
                raise ValueError(
                    f"{type(step).__name__} saves no state, so a run with it could not be resumed. "
                    "Leave out trace=, or use another step."
                )
        if not self.exists or self.overwrite:
            self.create(run, tree, identity(run))
            return []
        self._hold(self.path)
        record = self.record
        self.run_id = record["run_id"]
        if "model" not in record["identity"]:
            raise ValueError(
                f"{self.path} was written by pm.sample, which saves no state to resume from. "
                "Start a new run with sgm.sample at another path."
            )
        different = differences(record["identity"], identity(run))
        if self.dtype is not None and str(self.dtype) != record["dtype"]:
            different.append(f"dtype: was {record['dtype']}, is {self.dtype}")
        if run.draws < record["draws"]:
            different.append(f"draws: was {record['draws']}, is {run.draws}; more would do")
        if different:
            raise ValueError(
                f"{self.path} has a different run and cannot be resumed by this one:\n- "
                + "\n- ".join([*different, *_changed_versions(record)])
            )
        # Steps that were used before keep some of what they learned: begin as the run began.
        run.fresh = from_plain(record["fresh"], run.fresh)
        with clear_errors(self.path, self.exists):
            if run.draws != record["draws"]:
                record = lengthened(record, run.draws)
                save(self._record_path, record)
            mend(self.path, record)
        self._check_finished(record)
        changed = _changed_versions(record)
        return [
            "Resuming with different versions of packages, so the last digits may differ: "
            f"{'; '.join(changed)}."
        ] * bool(changed)

    def create(self, run: Run, tree: DataTree, identity: dict[str, Any]) -> None:
        """Lay out a new run in place of any that lies there."""
        for dtypes in run.step.stats_dtypes:
            for name, dtype in dtypes.items():
                if np.dtype(dtype) == object and name not in LEFT_OUT:
                    raise ValueError(
                        f"The statistic '{name}' has objects as values, which cannot be stored. "
                        "Leave out trace=, or use another step."
                    )
        draws = {n: t.to_dataset() for n, t in tree.children.items() if n in GROUPS}
        others = {n: t.to_dataset() for n, t in tree.children.items() if n not in GROUPS}
        lengths = {n: run.tune if n.startswith("warmup_") else run.draws for n in draws}
        variables = [value for dataset in draws.values() for value in dataset.values()]
        size = sum(value.dtype.itemsize * int(np.prod(value.shape[2:])) for value in variables)
        chunk = BYTES_PER_CHUNK // max(1, size * run.chains_together)
        chunk = int(min(max(chunk, 1), DRAWS_PER_CHUNK))
        run_id = uuid.uuid4().hex
        record = {
            "format": FORMAT,
            "run_id": run_id,
            "identity": identity,
            "seed": run.seed,
            "fresh": to_plain(run.fresh, "of the step"),
            "versions": versions(),
            "draws": run.draws,
            "tune": run.tune,
            "chains": run.n_chains,
            "chains_together": run.chains_together,
            "chunk": chunk,
            "lengths": lengths,
            "dtype": str(self.dtype),
            "seconds": 0.0,
        }
        target = Path(os.path.realpath(self.path))
        # Under another name until it is whole.
        folder = target.with_name(f".{target.name}.{run_id}.new")
        with clear_errors(self.path, self.exists):
            _clear_away(target)
            (folder / ".sampler").mkdir(parents=True)
            self._hold(folder)
            try:
                lay_out(folder, run, draws, others, record, self.dtype)
                self._move(folder, target)
            except BaseException:
                self.release()
                shutil.rmtree(folder, ignore_errors=True)
                raise
        self.run_id = run_id

    def _move(self, folder: Path, target: Path) -> None:
        """Put a new run in its place, once nobody writes the one that lies there."""
        while True:
            if self.overwrite and self.exists:
                try:
                    self._delete(target, folder.with_suffix(".old"))
                except FileNotFoundError:  # another process has just deleted it
                    continue
            try:
                os.rename(folder, target)
                return
            except OSError as error:
                if not target.exists():
                    raise
                if not self.exists:
                    raise FileExistsError(self._no_run()) from error
                if not self.overwrite:
                    raise FileExistsError(
                        f"Another process has started a run in {self.path} meanwhile. Choose "
                        "another path, or wait until it has finished."
                    ) from error

    def _delete(self, target: Path, old: Path) -> None:
        """Delete the run that lies there, once nobody writes it."""
        locks = self._locks()
        try:
            for lock in locks:
                lock.acquire()
            os.rename(target, old)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            for lock in locks:
                lock.release()

    def _locks(self) -> list[Lock]:
        """Of the run that lies there, and of all its chains."""
        try:
            record = self.record
        except ValueError:  # damaged, or of another version: those that there are
            paths = list(self._sampler.glob("chains_*.lock"))
            return [_run_lock(self.path), *(Lock(path, "these chains") for path in paths)]
        return [_run_lock(self.path), *(c.lock() for c in self._all_checkpoints(record))]

    def _hold(self, folder: Path) -> None:
        """Keep others from beginning a run in this one's place, until `unlock`."""
        self.unlock()
        lock = _run_lock(folder)
        lock.acquire()
        self._lock = lock

    def unlock(self) -> None:
        """Leave the store to other processes while nothing is written."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def release(self) -> None:
        """Leave the store to other runs: this one has ended, or was interrupted."""
        self.run_id = None
        self.unlock()

    # ---- reading ---------------------------------------------------------------------------

    @property
    def n_draws(self) -> list[int]:
        """Draws that are there, tuning left out.

        Returns
        -------
        list of int
            One entry per chain: the draws that its last checkpoint counts.

        Raises
        ------
        FileNotFoundError
            If there is no run.
        ValueError
            If it is in the format of another version.
        """
        return self._counts(self.record)

    def _counts(self, record: dict[str, Any]) -> list[int]:
        counts = []
        for checkpoints in self._all_checkpoints(record):
            checkpoint = checkpoints.latest()
            done = 0 if checkpoint is None else checkpoint["n_draws"]
            ends = [None] * len(checkpoints.chains) if checkpoint is None else checkpoint["ends"]
            own = [done if end is None else end for end in ends]
            counts += [max(0, n - record["tune"]) for n in own]
        return counts

    def _check_finished(self, record: dict[str, Any]) -> None:
        """Check the draws of chains that nobody writes any more; others' are checked by then."""
        arrays = open_draws(self.path)
        total = record["tune"] + record["draws"]
        for checkpoints in self._all_checkpoints(record):
            if ((checkpoints.latest() or {}).get("n_draws")) == total:
                check_chunks(self.path, record, arrays, checkpoints, total, read=True)

    def to_datatree(self) -> DataTree:
        """Return the draws that are there, as `sample` does.

        Chains of different lengths are cut or left out so that the most draws are kept.

        Returns
        -------
        DataTree
            Of at most 100 MB in memory; a larger one stays on disk and is read where it is used.

        Raises
        ------
        pymc.exceptions.SamplingError
            If no chain has got past tuning.
        FileNotFoundError
            If there is no run.
        ValueError
            If a file of it is missing or damaged, naming it and the remedy.
        """
        record = self.record
        complaints = [c.complaint() for c in self._all_checkpoints(record)]
        for complaint in filter(None, complaints):
            _log.warning(complaint)
        lengths = self._counts(record)
        if not any(lengths):
            message = f"No chain in {self.path} has got past tuning."
            raise SamplingError(" ".join([message, *filter(None, complaints)]))
        chains, length = longest_cut(lengths)
        with clear_errors(self.path, holds_draws=True):
            mend(self.path, record)
        self._check_draws(record, read=False)
        tree = xr.open_datatree(self.path, engine="zarr")
        groups = {}
        for name, node in tree.children.items():
            dataset = node.to_dataset()
            if "draw" in dataset.dims:
                dataset = dataset.isel(chain=chains)
                if not name.startswith("warmup_"):
                    dataset = dataset.isel(draw=slice(length))
            groups[name] = dataset
        tree = DataTree.from_dict(groups)
        if tree.nbytes > LOADED_BYTES:
            return tree
        try:
            return tree.load()
        except Exception:
            self._check_draws(record, read=True)  # names what is damaged
            raise

    def _check_draws(self, record: dict[str, Any], read: bool) -> None:
        arrays = open_draws(self.path)
        for checkpoints in self._all_checkpoints(record):
            n_draws = (checkpoints.latest() or {}).get("n_draws", 0)
            check_chunks(self.path, record, arrays, checkpoints, n_draws, read)

    def add_seconds(self, seconds: float) -> None:
        """Count the time of a session."""
        record = self.record
        seconds += record["seconds"]

        def set_time(path: str, node: dict[str, Any]) -> None:
            if path in GROUPS:
                node["attributes"]["sampling_time"] = seconds

        record |= {"seconds": seconds, "metadata": edited(record["metadata"], set_time)}
        save(self._record_path, record)
        mend(self.path, record)

    def checkpoints(self, chains: range) -> Checkpoints:
        """Return the checkpoints of chains that advance together."""
        assert self.run_id is not None
        return Checkpoints(self._sampler, chains, self.run_id)

    def _all_checkpoints(self, record: dict[str, Any]) -> list[Checkpoints]:
        n, together = record["chains"], record["chains_together"]
        groups = (range(first, min(first + together, n)) for first in range(0, n, together))
        return [Checkpoints(self._sampler, chains, record["run_id"]) for chains in groups]

    def writer(self, run: Run, chains: range) -> Writer:
        """Return the one writer of some chains, for a ``with`` block."""
        return Writer(self, run, chains)


def store_of(trace: Any, resume: bool) -> ZarrStore | None:
    """Return the store that ``trace`` of `sample` means, if any."""
    if trace is None:
        if resume:
            raise ValueError("resume=True needs the store of the earlier run: trace=<path>.")
        return None
    if isinstance(trace, str | Path):
        return ZarrStore(trace)
    if not isinstance(trace, ZarrStore):
        raise ValueError(
            f"trace={trace!r} must be a path or a ZarrStore. Without trace=, draws are kept in "
            "memory and are not lost after an error."
        )
    return trace


def _run_lock(folder: Path) -> Lock:
    return Lock(folder / RUN_LOCK, "this run")


def _clear_away(target: Path) -> None:
    """Delete what a process left that died while it began a run there."""
    for path in target.parent.iterdir():
        own = path.name.startswith(f".{target.name}.") and path.suffix in (".new", ".old")
        if own and (path / RUN_LOCK).exists():
            lock = _run_lock(path)
            with suppress(RuntimeError, FileNotFoundError):  # it is alive, or has just finished
                lock.acquire(seconds=0.0)
                shutil.rmtree(path, ignore_errors=True)
                lock.release()


def _changed_versions(record: dict[str, Any]) -> list[str]:
    return [
        f"{name} was {record['versions'].get(name)}, is {version}"
        for name, version in versions().items()
        if record["versions"].get(name, version) != version
    ]
