"""From recorded draws to the DataTree that `pm.sample` returns."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
from pymc.backends.arviz import DataTreeConverter
from pymc.backends.base import MultiTrace
from pymc.exceptions import SamplingError
from pymc.model import Model
from pymc.stats.convergence import log_warnings, run_convergence_checks
from pymc.util import drop_warning_stat
from xarray import DataArray, Dataset, DataTree

from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.pymc_internals import report, statistics_of
from pymc_sgmcmc.run.run_events import Block, Run

_log = logging.getLogger("pymc.sgmcmc")

VERSION = version("pymc-sgmcmc")
MAX_DATA_BYTES = 50_000_000
"""Size of the data in bytes above which they are copied into the result only on request."""
MAX_CHECKED = 4_000_000
"""Largest number of values (elements x chains x draws) in convergence checks: about a second."""


class InMemoryDraws:
    """Keeps draws in PyMC's in-memory recorders, one per chain."""

    def __init__(self, run: Run):
        self.n_warmup = run.tune if run.wants_warmup else 0
        self.skipped = run.tune - self.n_warmup
        self.traces = []
        for chain in range(run.n_chains):
            trace = run.recorder.new_trace()
            trace.setup(self.n_warmup + run.draws, chain, run.step.stats_dtypes)
            self.traces.append(trace)

    @classmethod
    def example(cls, run: Run) -> "InMemoryDraws":
        """Make one arbitrary draw of one chain, which shows the form of a result."""
        in_memory = cls(replace(run, starts=run.starts[:1], draws=1, tune=min(run.tune, 1)))
        for trace in in_memory.traces:
            trace.draw_idx = trace.draws
        return in_memory

    def write(self, block: Block) -> None:
        """Keep a block."""
        first = block.first - self.skipped
        if first < 0:
            return
        for k, chain in enumerate(block.chains):
            n, trace = block.count(k), self.traces[chain]
            if n == 0:
                continue
            end = first + n
            for name, values in block.values.items():
                trace.samples[name][first:end] = values[k, :n]
            for kept, new in zip(statistics_of(trace), block.stats, strict=True):
                for name, values in new.items():
                    kept[name][first:end] = values[k, :n]
            trace.draw_idx = end  # last, so that an interrupted write leaves no gap


class DrawsOnly(DataTreeConverter):
    """A converter that leaves the data out."""

    def observed_data_to_xarray(self):
        return None

    def constant_data_to_xarray(self):
        return None


def longest_cut(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Choose chains and a common length so that the most draws are kept, as `pm.sample` does."""
    longest = np.sort(lengths)[::-1]
    length = int(longest[np.argmax(longest * np.arange(1, len(longest) + 1))])
    return [c for c, n in enumerate(lengths) if n >= length], length


def to_datatree(
    in_memory: InMemoryDraws,
    *,
    model: Model,
    tune: int,
    discard_warmup: bool,
    seconds: float,
    include_data: bool,
    keep_warning_stat: bool,
    idata_kwargs: dict[str, Any],
    settings: dict[str, Any],
) -> DataTree:
    """Convert PyMC's in-memory recorders as `pm.sample` does, cut as in `longest_cut`.

    Raises an error if no chain has a draw after tuning. ``settings`` are stored as JSON in
    ``sample_stats``.
    """
    n_warmup = in_memory.n_warmup
    lengths = [max(0, len(trace) - n_warmup) for trace in in_memory.traces]
    if not any(lengths):
        raise SamplingError("No chain got past tuning: there are no draws to return.")
    numbers, length = longest_cut(lengths)
    chosen = [in_memory.traces[c] for c in numbers]
    multitrace = MultiTrace(chosen)[: n_warmup + length]
    if discard_warmup:
        multitrace = multitrace[n_warmup:]
    report(multitrace, tune, length, seconds)
    converter = DataTreeConverter if include_data else DrawsOnly
    kwargs = {"model": model, "save_warmup": not discard_warmup} | idata_kwargs
    tree = converter(trace=multitrace, **kwargs).to_inference_data()
    for name in ("posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats"):
        if name in tree.children:
            group = tree[name].to_dataset().assign_coords(chain=numbers)
            group.attrs["inference_library_settings"] = json.dumps(settings)
            group.attrs["pymc_sgmcmc_version"] = VERSION
            tree[name] = DataTree(group)
    return tree if keep_warning_stat else drop_warning_stat(tree)


def check_convergence(tree: DataTree, model: Model) -> None:
    """Log PyMC's convergence warnings, from at most `MAX_CHECKED` numbers.

    In a large model only elements evenly spaced over each variable are checked.
    """
    free = {rv.name for rv in model.free_RVs}
    posterior = tree["posterior"].to_dataset()
    posterior = posterior[[name for name in posterior.data_vars if name in free]]
    if not posterior.data_vars:
        return
    n_draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    sizes = {name: values[0, 0].size for name, values in posterior.items()}
    affordable = MAX_CHECKED // n_draws
    if sum(sizes.values()) > affordable:
        share = affordable / sum(sizes.values())
        posterior = Dataset(
            {name: _some_of(str(name), values, share) for name, values in posterior.items()}
        )
        checked = sum(values[0, 0].size for values in posterior.values())
        _log.info(
            f"Convergence is checked on only {checked} of {sum(sizes.values())} elements, to save "
            "time."
        )
    groups = {"/posterior": posterior}
    if "sample_stats" in tree.children:
        groups["/sample_stats"] = tree["sample_stats"].to_dataset()
    log_warnings(run_convergence_checks(DataTree.from_dict(groups), model))


def _some_of(name: str, draws: DataArray, share: float) -> DataArray:
    """Return the draws of evenly spaced elements, at least one."""
    flat = draws.values.reshape(*draws.shape[:2], -1)
    size = flat.shape[2]
    chosen = np.unique(np.linspace(0, size - 1, max(1, int(size * share))).astype(int))
    return DataArray(flat[:, :, chosen], dims=(*draws.dims[:2], f"element of {name}"))


def data_bytes(model: Model) -> int:
    """Return the bytes of the model's data that a result with data would copy."""
    arrays = {*model.data_vars, *(model.rvs_to_values[rv] for rv in model.observed_RVs)}
    total = 0
    for array in arrays:
        try:
            total += array_value(array).nbytes
        except (AttributeError, TypeError, ValueError, NotImplementedError):
            continue
    return total


def is_affordable(n_bytes: int) -> bool:
    """Whether data is small enough for a result to copy it."""
    return n_bytes <= MAX_DATA_BYTES


def affordable_data(model: Model) -> bool:
    """Whether the data is small enough for a result to copy it; a message says if not."""
    n_bytes = data_bytes(model)
    if not is_affordable(n_bytes):
        _log.info(
            f"The data ({n_bytes / 1e6:.0f} MB) is left out of the result: pass include_data=True "
            "to include it."
        )
    return is_affordable(n_bytes)


def summary(run: Run, tree: DataTree) -> str:
    """Describe how much was sampled, how long it took, and which chains are left out."""
    sizes = tree["posterior"].sizes
    left_out = sorted(set(range(run.n_chains)) - {int(c) for c in tree["posterior"].chain})
    text = (
        f"Sampling {sizes['chain']} chains for {run.tune:_d} tune and {sizes['draw']:_d} draw "
        f"iterations took {tree['posterior'].attrs['sampling_time']:.0f} seconds."
    )
    if left_out:
        text += f" Chains left out because they are too short: {left_out}."
    return text


def salvage(error: BaseException, result: Callable[[], DataTree]) -> None:
    """Attach the draws made so far to an exception."""
    try:
        error.idata = result()  # type: ignore[attr-defined]
    except Exception:  # no draws, or the same error again: only the first error matters
        return
    error.add_note("The draws made so far are in this exception's attribute `idata`.")
