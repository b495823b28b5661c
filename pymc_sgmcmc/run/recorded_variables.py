"""What a run records: by default all but what has one number for each row of the data."""

import logging
from collections.abc import Sequence

from pymc.model import Model
from pymc.step_methods.compound import flatten_steps

from pymc_sgmcmc.run.run import Run
from pymc_sgmcmc.step import SGMCMCStep

_log = logging.getLogger("pymc.sgmcmc")


def choose_recorded(run: Run, var_names: Sequence[str] | None, transformed: bool) -> None:
    """Choose what to record: by default everything except variables with one number per row."""
    model = run.model
    rows = {}
    for step in flatten_steps(run.step):
        for stream in step.source.rows if isinstance(step, SGMCMCStep) else []:
            array, axis = stream.cuts[0]
            dims = model.named_vars_to_dims.get(array.name or "")
            rows[stream.n_rows] = dims[axis] if dims else None
    if var_names is not None:
        named = {getattr(v, "name", v) for v in var_names}
        chosen = [v for v in model.unobserved_RVs if v.name in named]
        run.vars = model.replace_rvs_by_values(chosen)
        if not run.vars:
            raise ValueError(
                f"var_names={list(var_names)!r} names no free variable or deterministic on its own "
                "scale: " + ", ".join(v.name for v in model.unobserved_RVs) + "."
            )
        return
    chosen = list(model.unobserved_RVs)
    left_out = [
        v
        for v in model.deterministics
        if set(model.named_vars_to_dims.get(v.name, ())) & {d for d in rows.values() if d}
    ]
    run.vars = _values(model, chosen, left_out, transformed)
    shapes = run.recorded.var_shapes
    more = [
        v
        for v in model.deterministics
        if v not in left_out
        and v.name not in model.named_vars_to_dims
        and set(shapes[v.name]) & set(rows)
    ]
    if more:
        left_out += more
        run.vars = _values(model, chosen, left_out, transformed)
        run.recorder = None
    if left_out:
        names = ", ".join(f"'{v.name}'" for v in left_out)
        _log.info(f"Not recorded, for it has a number for each row: {names}. Name it in var_names.")


def _values(model: Model, chosen: list, left_out: list, transformed: bool) -> list:
    kept = model.replace_rvs_by_values([v for v in chosen if v not in left_out])
    if transformed:
        kept += [v for v in model.value_vars if v.name not in {k.name for k in kept}]
    return kept
