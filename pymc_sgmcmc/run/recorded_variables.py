"""What a run records: by default everything except variables with one number per row."""

import logging
from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pymc.blocking import PointType
from pymc.model import Model
from pymc.step_methods.compound import flatten_steps
from pytensor.tensor.variable import TensorVariable
from xarray import DataTree

from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.run.recorder import Recorder
from pymc_sgmcmc.step import SGMCMCStep

_log = logging.getLogger("pymc.sgmcmc")

NOTHING = "nothing_recorded"


def recorder_of(
    model: Model,
    step: Any,
    start: PointType,
    var_names: Sequence[str] | None,
    transformed: bool,
) -> Recorder:
    """Choose what to record: by default everything except variables with one number per row."""
    rows, mode = {}, None
    for one in flatten_steps(step):
        # A user of JAX should not wait for numba to compile deterministics.
        if isinstance(one, SGMCMCStep) and backend_of(one.kernel.mode).compiles_sooner:
            mode = one.kernel.mode
        for stream in one.source.rows if isinstance(one, SGMCMCStep) else []:
            for length, [(array, axis), *_] in zip(stream.lengths, stream.sliced, strict=True):
                dims = model.named_vars_to_dims.get(array.name or "")
                rows[length] = dims[axis] if dims else None
    if var_names is not None and len(var_names) == 0:
        return Recorder(model, [_nothing(model)], start, mode=mode)
    if var_names is not None:
        named = {getattr(v, "name", v) for v in var_names}
        chosen = [v for v in model.unobserved_RVs if v.name in named]
        if not chosen:
            raise ValueError(
                f"var_names={list(var_names)!r} names no free variable or deterministic on its own "
                "scale: " + ", ".join(v.name for v in model.unobserved_RVs) + "."
            )
        return Recorder(model, model.replace_rvs_by_values(chosen), start, mode=mode)
    chosen = list(model.unobserved_RVs)
    left_out = [
        v
        for v in model.deterministics
        if set(model.named_vars_to_dims.get(v.name, ())) & {d for d in rows.values() if d}
    ]
    recorder = Recorder(model, _values(model, chosen, left_out, transformed), start, mode=mode)
    shapes = recorder.trace.var_shapes
    more = [
        v
        for v in model.deterministics
        if v not in left_out
        and v.name not in model.named_vars_to_dims
        and set(shapes[v.name]) & set(rows)
    ]
    if more:
        left_out += more
        recorder = Recorder(model, _values(model, chosen, left_out, transformed), start, mode=mode)
    if left_out:
        names = ", ".join(f"'{v.name}'" for v in left_out)
        _log.info(f"Not recorded (one number per row): {names}. Name it in var_names to record it.")
    return recorder


def _nothing(model: Model) -> TensorVariable:
    """A number that takes the place of recorded variables: PyMC counts draws by those."""
    zero = pt.zeros_like(model.value_vars[0].sum())
    zero.name = NOTHING
    return zero


def without_nothing(tree: DataTree) -> DataTree:
    """Return a result without the number that takes the place of variables, if it is there."""
    for group in ("posterior", "warmup_posterior"):
        if group in tree.children and NOTHING in tree[group]:
            tree[group] = DataTree(tree[group].to_dataset().drop_vars(NOTHING))
    return tree


def _values(model: Model, chosen: list, left_out: list, transformed: bool) -> list:
    kept = model.replace_rvs_by_values([v for v in chosen if v not in left_out])
    if transformed:
        kept += [v for v in model.value_vars if v.name not in {k.name for k in kept}]
    return kept
