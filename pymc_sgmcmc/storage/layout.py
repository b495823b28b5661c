"""How a run lies on disk: groups, arrays of draws in chunks, coordinates, data."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from xarray import Dataset, DataTree

from pymc_sgmcmc.run.run import Run
from pymc_sgmcmc.run.saved_state import save
from pymc_sgmcmc.storage.metadata import edited, recorded_files


def lay_out(
    folder: Path,
    run: Run,
    draws: dict[str, Dataset],
    others: dict[str, Dataset],
    record: dict[str, Any],
    dtype: np.dtype | None,
) -> None:
    """Write all of a new run but its draws, and its record.

    Parameters
    ----------
    folder : pathlib.Path
        Its folder ``.sampler`` is there.
    run : Run
    draws, others : dict of Dataset
        The result's groups as they will be, those of draws apart: of one chain and one draw.
    record : dict
    dtype : numpy.dtype or None
        Type of real variables; None: their own.
    """
    for name, dataset in draws.items():
        # Their coordinates only: the draws' own arrays follow.
        others[name] = dataset.drop_vars([*dataset.data_vars, "chain", "draw"])
        others[name] = others[name].assign_coords(
            chain=np.arange(run.n_chains), draw=np.arange(record["lengths"][name])
        )
    with warnings.catch_warnings():  # strings have no final place in zarr's format yet
        warnings.filterwarnings("ignore", module="zarr")
        DataTree.from_dict(others).to_zarr(folder, mode="a", consolidated=False)
    for name, dataset in draws.items():
        _create_arrays(folder, name, dataset, run, record, dtype)
    _consolidate(folder)
    texts, digests = recorded_files(folder)
    save(folder / ".sampler" / "run.npz", record | {"metadata": texts, "digests": digests})


def _create_arrays(
    folder: Path,
    name: str,
    dataset: Dataset,
    run: Run,
    record: dict[str, Any],
    dtype: np.dtype | None,
) -> None:
    import zarr
    from zarr.codecs import Crc32cCodec

    group: Any = zarr.open_group(folder, mode="r+")[name]
    for variable, value in dataset.items():
        own: Any = value.dtype
        if dtype is not None and own.kind == "f" and name.endswith("posterior"):
            own = dtype
        group.create_array(
            str(variable),
            shape=(run.n_chains, record["lengths"][name], *value.shape[2:]),
            chunks=(run.chains_together, record["chunk"], *(max(n, 1) for n in value.shape[2:])),
            dtype=own,
            fill_value=np.nan if own.kind == "f" else 0,
            compressors=[Crc32cCodec()],  # random digits do not compress; damage must be seen
            dimension_names=[str(d) for d in value.dims],
            attributes=dict(value.attrs),
        )


def lengthened(record: dict[str, Any], draws: int) -> dict[str, Any]:
    """The record of the same run with room for more draws; `mend` makes the room."""
    grown = ("posterior", "sample_stats")

    def set_length(path: str, node: dict[str, Any]) -> None:
        names = node.get("dimension_names") or []
        if path.split("/")[0] in grown and "draw" in names:
            node["shape"][names.index("draw")] = draws

    lengths = {n: draws if n in grown else length for n, length in record["lengths"].items()}
    metadata = edited(record["metadata"], set_length)
    return record | {"draws": draws, "lengths": lengths, "metadata": metadata}


def _consolidate(folder: Path) -> None:
    """Gather all metadata in one file, so that opening the store lists no folders."""
    import zarr

    with warnings.catch_warnings():  # zarr warns that others may not know of it: they need not
        warnings.filterwarnings("ignore", module="zarr")
        zarr.consolidate_metadata(folder)
