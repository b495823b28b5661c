"""Draws on disk, with everything that is needed to resume the run.

The store is a zarr group that xarray opens as the DataTree of the run. Its folder ``.sampler`` has
a record of the run and for each chain a checkpoint: the number of its valid draws and the sampler's
state after them. Every file is written under another name and then renamed, draws before the
checkpoint that counts them.
"""

import copy
import logging
import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pymc.backends.base import BaseTrace
from pymc.step_methods.compound import flatten_steps
from xarray import DataTree

from pymc_sgmcmc.adaptation.adapted_settings import Adapted
from pymc_sgmcmc.file_lock import Lock
from pymc_sgmcmc.number_checks import real_number, shown, true_or_false
from pymc_sgmcmc.pymc_internals import saves_state
from pymc_sgmcmc.run.run_events import Run
from pymc_sgmcmc.run.saved_state import from_plain
from pymc_sgmcmc.storage.checkpoints import all_checkpoints
from pymc_sgmcmc.storage.create import create, run_lock
from pymc_sgmcmc.storage.identity import differences, identity, versions
from pymc_sgmcmc.storage.kept_draws import StoredDraws
from pymc_sgmcmc.storage.metadata import check_digests, edited, lengthened, repair_metadata
from pymc_sgmcmc.storage.names_and_labels import refuse_impossible_path
from pymc_sgmcmc.storage.read import check_draws, count_draws, read_datatree
from pymc_sgmcmc.storage.record import (
    clear_errors,
    is_run,
    not_a_run,
    read_adapted,
    read_record,
    write_record,
)
from pymc_sgmcmc.storage.writer import Writer

_log = logging.getLogger("pymc.sgmcmc")


class ZarrStore(BaseTrace):
    """Writes draws to disk while they are made, so that any run can be resumed.

    Pass it as ``trace=`` to `sample`, which can resume the run (``resume=True``) after Ctrl-C, an
    exception or ``kill -9``, exactly as if it had not been interrupted. Or pass it to `pm.sample`,
    inside the model's context: the draws can be read however the run ends, but PyMC cannot resume
    it. It requires ``zarr``.

    Parameters
    ----------
    path : str or pathlib.Path
        A folder that does not exist yet, or the folder of an earlier run. A relative path starts
        from the working directory in which the store is made.
    overwrite : bool, default False
        Whether to delete an existing run at this path.
    seconds : float, default 10.0
        Seconds between two checkpoints of a chain, which is the most that a crash can lose.
    dtype : str or numpy.dtype, optional
        Store real variables in this type, for example ``"float32"`` for half the size. The
        sampler's own precision does not change.

    Raises
    ------
    ValueError
        For ``seconds`` below 0, or a ``dtype`` that is not a real type. When a run begins, for a
        store of a different run than the one to resume.
    ImportError
        When a run begins without zarr 3.1.6 or later.
    FileExistsError
        When a run begins, for a folder with other contents, or for an existing run without
        ``resume`` or ``overwrite``.

    Notes
    -----
    ``xarray.open_datatree(zarr.storage.LocalStore(path), engine="zarr")`` opens the store at any
    time; draws that have not been made are NaN (0 for whole numbers). `to_datatree` leaves them
    out, and checks that the others are unchanged.

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
        if not isinstance(path, str | os.PathLike):
            raise ValueError(
                f"path={shown(path)} must be the path of a folder, which need not exist."
            )
        refuse_impossible_path(Path(path))
        self.path = Path(path).absolute()  # the working directory may change during a run
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
        # `pm.sample` copies its trace argument for each chain, and thereby gets recorders.
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
        return is_run(self.path)

    @property
    def record(self) -> dict[str, Any]:
        """Identity, numbers of draws and layout of the run."""
        return read_record(self.path, self.run_id)

    @property
    def adapted(self) -> Adapted | None:
        """Choices of the run's warm-up, if they are stored."""
        return read_adapted(self.path) if self.exists else None

    # ---- beginning -------------------------------------------------------------------------

    def check(self, resume: bool) -> None:
        """Refuse a path that cannot be used, before any work is done."""
        self.run_id = None  # an existing file or folder is not this run
        try:
            import zarr
        except ImportError as error:
            raise ImportError("A store needs zarr: pip install 'pymc-sgmcmc[zarr]'.") from error
        if not hasattr(zarr.Array, "with_config"):
            raise ImportError(f"A store needs zarr 3.1.6 or later, and this is {zarr.__version__}.")
        if resume and self.overwrite:
            raise ValueError("resume=True and ZarrStore(overwrite=True) contradict each other.")
        for place in (self.path, *self.path.parents):
            if place.exists() and not place.is_dir():
                raise FileExistsError(
                    f"{self.path} cannot be a folder: {place} is a file. Choose another path."
                )
        if self.path.exists() and not self.exists and any(self.path.iterdir()):
            raise FileExistsError(not_a_run(self.path))
        if self.exists and not resume and not self.overwrite:
            record = self.record
            raise FileExistsError(
                f"{self.path} has a run of {record['draws']} draws and {record['chains']} chains, "
                f"of which {min(self.n_draws)} draws are complete. resume=True continues it, and "
                "ZarrStore(path, overwrite=True) deletes it."
            )
        if resume and self.exists and min(self.n_draws) >= self.record["draws"]:
            return  # possibly nothing is left to write
        with clear_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            folder = self.path if resume and self.exists else self.path.parent
            probe = folder / f".probe-{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()

    def begin(self, run: Run, tree: DataTree) -> Run:
        """Create a new run, or check that the existing one is this run and name any differences.

        Return the run to carry out, which begins with the step in its first state if it is resumed.
        """
        for step in flatten_steps(run.step):
            if not saves_state(step):
                raise ValueError(
                    f"{type(step).__name__} saves no state, so a run with it could not be resumed. "
                    "Leave out trace=, or use another step."
                )
        if not self.exists or self.overwrite:
            self.create(run, tree, identity(run))
            return run
        self.unlock()
        lock = run_lock(self.path)
        with clear_errors(self.path):
            lock.acquire()
        self._lock = lock
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
            different.append(f"draws: was {record['draws']}, is {run.draws}, which is fewer")
        if different:
            raise ValueError(
                f"{self.path} has a different run and cannot be resumed by this one:\n- "
                + "\n- ".join([*different, *_changed_versions(record)])
            )
        check_digests(self.path, record)
        with clear_errors(self.path):
            if run.draws != record["draws"]:
                record = lengthened(record, run.draws)
                write_record(self.path, record)
            repair_metadata(self.path, record)
        # Other chains are checked when they continue.
        check_draws(self.path, record, read=True, only_finished=True)
        if changed := _changed_versions(record):
            _log.warning(
                "Resuming with different versions of packages, so the last digits may differ: "
                f"{'; '.join(changed)}."
            )
        # A step that was used before keeps some of its tuning, so it starts as the run started.
        return replace(run, fresh=from_plain(record["fresh"], run.fresh))

    def create(self, run: Run, tree: DataTree, identity: dict[str, Any]) -> None:
        """Create a new run, replacing any existing one."""
        self.unlock()
        self.run_id, self._lock = create(
            self.path, run, tree, identity, dtype=self.dtype, overwrite=self.overwrite
        )

    def unlock(self) -> None:
        """Let other processes use the store while nothing is written."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def release(self) -> None:
        """Let other runs use the store, because this one has ended or was interrupted."""
        self.run_id = None
        self.unlock()

    def restore_rest(self, run: Run) -> None:
        """Restore averages and points of the chains that an interrupted run has not continued."""
        if run.observers.have_seen_all(run.n_chains):
            return
        for checkpoints in all_checkpoints(self.path, self.record):
            latest = checkpoints.latest() or {}
            if latest.get("state") is not None:
                run.observers.restore(checkpoints.chains, latest["state"], only_unseen=True)

    # ---- reading ---------------------------------------------------------------------------

    @property
    def n_draws(self) -> list[int]:
        """Number of valid draws, without tuning.

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
        return count_draws(self.path, self.record)

    def to_datatree(self) -> DataTree:
        """Return the valid draws, as `sample` does.

        Chains of different lengths are cut or left out so that the most draws are kept.

        Returns
        -------
        DataTree
            In memory up to 100 MB; a larger one is read from disk when it is used.

        Raises
        ------
        pymc.exceptions.SamplingError
            If no chain has got past tuning.
        FileNotFoundError
            If there is no run.
        ValueError
            If one of its files is missing or damaged, naming it and the remedy.
        """
        return read_datatree(self.path, self.record)

    def add_seconds(self, seconds: float) -> None:
        """Add to the sampling time of the run."""
        record = self.record
        seconds += record["seconds"]

        def set_time(root: Any) -> None:
            for name in record["lengths"]:
                root[name].attrs["sampling_time"] = seconds

        record |= {"seconds": seconds, "metadata": edited(record["metadata"], set_time)}
        write_record(self.path, record)
        repair_metadata(self.path, record)

    def writer(self, run: Run, chains: range) -> Writer:
        """Return the one writer of some chains, for a ``with`` block."""
        assert self.run_id is not None
        return Writer(self.path, self.run_id, run, chains, self.seconds)


def store_of(trace: Any, resume: bool) -> ZarrStore | None:
    """Return the store that the ``trace`` of `sample` refers to, if any."""
    if trace is None:
        if resume:
            raise ValueError("resume=True needs the store of the earlier run: trace=<path>.")
        return None
    if isinstance(trace, str | Path):
        return ZarrStore(trace)
    if not isinstance(trace, ZarrStore):
        raise ValueError(
            f"trace={shown(trace)} must be a path or a ZarrStore. Without trace=, draws are kept "
            "in memory and are not lost after an error."
        )
    return trace


def _changed_versions(record: dict[str, Any]) -> list[str]:
    return [
        f"{name} was {record['versions'].get(name)}, is {version}"
        for name, version in versions().items()
        if record["versions"].get(name, version) != version
    ]
