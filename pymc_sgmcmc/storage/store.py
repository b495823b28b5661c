"""Draws on disk, with all that is needed to go on.

The store is a zarr group that xarray opens as the DataTree of the run. Beside its groups lies the
folder ``.sampler``: what the run is, and for each chain a checkpoint that says how many of its
draws count and holds the sampler's state after them. Every file is written under another name and
then renamed, draws before the checkpoint that counts them: whenever the process dies, what the last
checkpoint counts is whole, and anything beyond is made again.
"""

import copy
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from pymc.backends.base import BaseTrace
from pymc.exceptions import SamplingError
from pymc.step_methods.compound import flatten_steps
from xarray import Dataset, DataTree

from pymc_sgmcmc.argument_checks import real_number, true_or_false
from pymc_sgmcmc.pymc_internals import saves_state
from pymc_sgmcmc.run.chains import Run
from pymc_sgmcmc.run.plain import from_plain, load, save, to_plain
from pymc_sgmcmc.storage.checkpoints import Checkpoints
from pymc_sgmcmc.storage.file_errors import clear_errors
from pymc_sgmcmc.storage.identity import differences, identity, versions
from pymc_sgmcmc.storage.recorder import StoredDraws
from pymc_sgmcmc.storage.writer import GROUPS, LEFT_OUT, Writer

FORMAT = 1
BYTES_PER_CHUNK = 2**23
"""Draws are in chunks of about this size, all variables of a chain together,"""
DRAWS_PER_CHUNK = 256
"""... or of so many draws, where they are small."""
LOADED_BYTES = 100_000_000
"""A result up to this size is read into memory; a larger one stays on disk until it is used."""


class ZarrStore(BaseTrace):
    """Keeps draws on disk while they are made, so that nothing ends a run for good.

    Pass it as ``trace=`` to `sample`, which can go on with it (``resume=True``) after Ctrl-C, an
    exception or ``kill -9``, exactly as if nothing had happened. Or to `pm.sample`, inside the
    model's context: what was drawn can be read whatever happens, but PyMC cannot go on with it.
    Needs ``zarr``.

    Parameters
    ----------
    path : str or pathlib.Path
        A folder that does not exist yet, or that of an earlier run.
    overwrite : bool, default False
        Whether a run that lies there may be deleted for a new one.
    seconds : float, default 10.0
        Time between two checkpoints of a chain: what a crash costs at most.
    dtype : str or numpy.dtype, optional
        Store real variables in this type, for example ``"float32"`` for half the size. The sampler
        computes in its own.

    Raises
    ------
    ValueError
        For ``seconds`` below 0, or a ``dtype`` that is no real type. When a run begins: for a
        store that holds another run than the one to resume.
    ImportError
        When a run begins, without zarr 3.1 or later.
    FileExistsError
        When a run begins, for a folder that holds something else, or a run that is neither
        resumed nor to be overwritten.

    Notes
    -----
    ``xarray.open_datatree(path, engine="zarr")`` opens the store at any time; draws that are not
    there yet are NaN (0 for whole numbers). `to_datatree` leaves them out.

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
        """Whether a run lies there, begun or finished.

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
            raise FileNotFoundError(f"There is no run in {self.path}.")
        record = load(self._record_path)
        if record["format"] != FORMAT:
            raise ValueError(
                f"{self.path} has the format {record['format']}; this version reads {FORMAT}."
            )
        return record

    # ---- beginning -------------------------------------------------------------------------

    def check(self, resume: bool) -> None:
        """Refuse a path that cannot be used, before any work is done."""
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
            raise FileExistsError(
                f"{self.path} holds something that is no run of this package. Choose another path."
            )
        if self.exists and not resume and not self.overwrite:
            record = self.record
            raise FileExistsError(
                f"{self.path} holds a run: {record['draws']} draws of {record['chains']} chains, "
                f"of which {min(self.n_draws)} are there. resume=True goes on with it, "
                "ZarrStore(path, overwrite=True) deletes it."
            )
        with clear_errors(self.path, self.exists):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            probe = (self.path if self.exists else self.path.parent) / ".probe"
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
                    f"{type(step).__name__} saves no state: a run with it could not be resumed. "
                    "Leave out trace=, or take another step."
                )
        if not self.exists or self.overwrite:
            self.create(run, tree, identity(run))
            return []
        record = self.record
        if "model" not in record["identity"]:
            raise ValueError(
                f"{self.path} was filled by pm.sample, which keeps no state to resume."
            )
        different = differences(record["identity"], identity(run))
        if record["chains_together"] != run.chains_together:
            different.append("chain_method: chains were not run in the same way")
        if self.dtype is not None and str(self.dtype) != record["dtype"]:
            different.append(f"dtype: was {record['dtype']}, is {self.dtype}")
        if run.draws < record["draws"]:
            different.append(f"draws: was {record['draws']}, is {run.draws}; more would do")
        if different:
            raise ValueError(
                f"{self.path} holds another run and cannot be resumed by this one:\n- "
                + "\n- ".join(different)
            )
        # Steps that were used before keep some of what they learned: begin as the run began.
        run.fresh = from_plain(record["fresh"], run.fresh)
        with clear_errors(self.path, self.exists):
            self._lengthen(record, run.draws)
        changed = [
            f"{name} was {record['versions'].get(name)}, is {version}"
            for name, version in versions().items()
            if record["versions"].get(name, version) != version
        ]
        return [
            f"Resuming with other versions, so the last digits may differ: {'; '.join(changed)}."
        ] * bool(changed)

    def create(self, run: Run, tree: DataTree, identity: dict[str, Any]) -> None:
        """Lay out a new run in place of any that lies there."""
        for dtypes in run.step.stats_dtypes:
            for name, dtype in dtypes.items():
                if np.dtype(dtype) == object and name not in LEFT_OUT:
                    raise ValueError(f"The statistic '{name}' holds objects: it cannot be stored.")
        draws = {n: t.to_dataset() for n, t in tree.children.items() if n in GROUPS}
        others = {n: t.to_dataset() for n, t in tree.children.items() if n not in GROUPS}
        lengths = {n: run.tune if n.startswith("warmup_") else run.draws for n in draws}
        variables = [value for dataset in draws.values() for value in dataset.values()]
        size = sum(value.dtype.itemsize * int(np.prod(value.shape[2:])) for value in variables)
        chunk = BYTES_PER_CHUNK // max(1, size * run.chains_together)
        chunk = int(min(max(chunk, 1), DRAWS_PER_CHUNK))
        record = {
            "format": FORMAT,
            "identity": identity,
            "seed": run.seed,
            "fresh": to_plain(run.fresh, "of the step"),
            "versions": versions(),
            "draws": run.draws,
            "tune": run.tune,
            "chains": run.n_chains,
            "chains_together": run.chains_together,
            "chunk": chunk,
            "dtype": str(self.dtype),
            "seconds": 0.0,
        }
        # Under another name until it is whole.
        folder = self.path.with_name(f".{self.path.name}.new")
        with clear_errors(self.path, self.exists):
            old = self.path.with_name(f".{self.path.name}.old")
            for left in (folder, old):  # of a process that died here
                shutil.rmtree(left, ignore_errors=True)
            for name, dataset in draws.items():
                # Their coordinates only: the draws' own arrays follow.
                others[name] = dataset.drop_vars([*dataset.data_vars, "chain", "draw"])
                others[name] = others[name].assign_coords(
                    chain=np.arange(run.n_chains), draw=np.arange(lengths[name])
                )
            with warnings.catch_warnings():  # strings have no final place in zarr's format yet
                warnings.filterwarnings("ignore", module="zarr")
                DataTree.from_dict(others).to_zarr(folder, consolidated=False)
            for name, dataset in draws.items():
                self._create_arrays(folder, name, dataset, lengths[name], run, chunk)
            _consolidate(folder)
            (folder / ".sampler").mkdir()
            save(folder / ".sampler" / "run.npz", record)
            if self.path.exists():
                os.replace(self.path, old)
            os.replace(folder, self.path)
            shutil.rmtree(old, ignore_errors=True)

    def _create_arrays(
        self, folder: Path, name: str, dataset: Dataset, length: int, run: Run, chunk: int
    ) -> None:
        import zarr
        from zarr.codecs import Crc32cCodec

        group: Any = zarr.open_group(folder, mode="r+")[name]
        for variable, value in dataset.items():
            dtype: Any = value.dtype
            if self.dtype is not None and dtype.kind == "f" and name.endswith("posterior"):
                dtype = self.dtype
            group.create_array(
                str(variable),
                shape=(run.n_chains, length, *value.shape[2:]),
                chunks=(run.chains_together, chunk, *(max(n, 1) for n in value.shape[2:])),
                dtype=dtype,
                fill_value=np.nan if dtype.kind == "f" else 0,
                compressors=[Crc32cCodec()],  # random digits do not compress; damage must be seen
                dimension_names=[str(d) for d in value.dims],
                attributes=dict(value.attrs),
            )

    def _lengthen(self, record: dict[str, Any], draws: int) -> None:
        """Make room for more draws; done again from the start if it is interrupted."""
        import zarr

        root: Any = zarr.open_group(self.path, mode="r+")
        for name in ("posterior", "sample_stats"):
            if name not in root:
                continue
            for array in root[name].array_values():
                names = array.metadata.dimension_names
                if "draw" in names and array.shape[names.index("draw")] != draws:
                    shape = list(array.shape)
                    shape[names.index("draw")] = draws
                    array.resize(tuple(shape))
            root[name]["draw"][:] = np.arange(draws)
        _consolidate(self.path)
        if draws != record["draws"]:
            save(self._record_path, record | {"draws": draws})

    # ---- reading ---------------------------------------------------------------------------

    @property
    def n_draws(self) -> list[int]:
        """Draws that are there, tuning left out.

        Returns
        -------
        list of int
            One entry a chain: what its last checkpoint counts.

        Raises
        ------
        FileNotFoundError
            If there is no run.
        ValueError
            If it is in the format of another version.
        """
        record = self.record
        counts = []
        for first in range(0, record["chains"], record["chains_together"]):
            chains = range(first, min(first + record["chains_together"], record["chains"]))
            checkpoint = self.checkpoints(chains).latest()
            done = 0 if checkpoint is None else checkpoint["n_draws"]
            counts += [max(0, done - record["tune"])] * len(chains)
        return counts

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
            If no chain has got beyond tuning.
        FileNotFoundError
            If there is no run.
        """
        lengths = np.array(self.n_draws)
        if not lengths.any():
            raise SamplingError(f"No chain in {self.path} has got beyond tuning.")
        longest = np.sort(lengths)[::-1]
        length = int(longest[np.argmax(longest * np.arange(1, len(longest) + 1))])
        chains = np.flatnonzero(lengths >= length)
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
        return tree.load() if tree.nbytes <= LOADED_BYTES else tree

    def add_seconds(self, seconds: float) -> None:
        """Count the time of a session."""
        import zarr

        record = self.record
        seconds += record["seconds"]
        root: Any = zarr.open_group(self.path, mode="r+")
        for name in GROUPS:
            if name in root:
                root[name].attrs["sampling_time"] = seconds
        _consolidate(self.path)
        save(self._record_path, record | {"seconds": seconds})

    def checkpoints(self, chains: range) -> Checkpoints:
        """Return the checkpoints of chains that advance together."""
        return Checkpoints(self._sampler, chains)

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
            f"trace={trace!r} must be a path or a ZarrStore. Draws are kept in memory without one; "
            "they are not lost in an error."
        )
    return trace


def _consolidate(folder: Path) -> None:
    """Gather all metadata in one file, so that opening the store lists no folders."""
    import zarr

    with warnings.catch_warnings():  # zarr warns that others may not know of it: they need not
        warnings.filterwarnings("ignore", module="zarr")
        zarr.consolidate_metadata(folder)
