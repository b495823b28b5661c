"""How a run is stored on disk: groups, arrays of draws in chunks, coordinates, data."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from xarray import Dataset, DataTree

from pymc_sgmcmc.run.run import Run
from pymc_sgmcmc.storage.metadata import DRAW, consolidate, edited, recorded_files
from pymc_sgmcmc.storage.record import write_record


def lay_out(
    folder: Path,
    run: Run,
    draws: dict[str, Dataset],
    others: dict[str, Dataset],
    record: dict[str, Any],
    dtype: np.dtype | None,
) -> None:
    """Write a new run without its draws, and its record.

    ``draws`` and ``others`` are the result's groups with and without draws, of one chain and one
    draw, and ``dtype`` is the type in which real variables are stored (None: their own). The folder
    ``.sampler`` exists already.
    """
    from zarr.storage import LocalStore  # a path with a "#" would be taken for a URL

    store = LocalStore(folder)
    for name, dataset in draws.items():
        # Only their coordinates are written here; the draws' own arrays follow.
        others[name] = dataset.drop_vars([*dataset.data_vars, "chain", "draw"])
        others[name] = others[name].assign_coords(
            chain=np.arange(run.n_chains), draw=np.arange(record["lengths"][name])
        )
    with warnings.catch_warnings():  # strings have no final place in zarr's format yet
        warnings.filterwarnings("ignore", module="zarr")
        DataTree.from_dict(others).to_zarr(store, mode="a", consolidated=False)
    for name, dataset in draws.items():
        _create_arrays(store, name, dataset, run, record, dtype)
    consolidate(store)
    texts, digests = recorded_files(folder, draws)
    write_record(folder, record | {"metadata": texts, "digests": digests})


def _create_arrays(
    store: Any,
    name: str,
    dataset: Dataset,
    run: Run,
    record: dict[str, Any],
    dtype: np.dtype | None,
) -> None:
    import zarr
    from zarr.codecs import Crc32cCodec

    group: Any = zarr.open_group(store, mode="r+")[name]
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
            compressors=[Crc32cCodec()],  # random digits do not compress; checksums detect damage
            dimension_names=[str(d) for d in value.dims],
            attributes=dict(value.attrs),
        )


def lengthened(record: dict[str, Any], draws: int) -> dict[str, Any]:
    """Return the record of the same run with more draws, by which arrays are then enlarged."""
    grown = ("posterior", "sample_stats")

    def set_length(root: Any) -> None:
        for group in grown:
            for _, array in root[group].arrays() if group in root else ():
                names = array.metadata.dimension_names or ()
                if DRAW in names:
                    array.resize(
                        [draws if d == DRAW else n for d, n in zip(names, array.shape, strict=True)]
                    )

    lengths = {n: draws if n in grown else length for n, length in record["lengths"].items()}
    metadata = edited(record["metadata"], set_length)
    return record | {"draws": draws, "lengths": lengths, "metadata": metadata}
