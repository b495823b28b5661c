"""Where chains start."""

from collections.abc import Sequence

import numpy as np
from pymc.initial_point import PointType, StartDict, make_initial_point_fns_per_chain
from pymc.model import Model

from pymc_sgmcmc.backends.compile_time import quick_graphs


@quick_graphs()
def starts_of(
    model: Model,
    initvals: StartDict | Sequence[StartDict | None] | None,
    init: str,
    generators: Sequence[np.random.Generator],
) -> list[PointType]:
    """Return each chain's starting point: PyMC's initial point, with jitter if none is given.

    The jitter is that of PyMC's NUTS, uniform in [-1, 1] on the unconstrained scale, for
    variables that have no initial value of their own.
    """
    one = initvals if isinstance(initvals, dict) else None
    each = [one] * len(generators) if isinstance(initvals, dict | None) else list(initvals)

    def jittered(given: StartDict | None) -> set:
        named = {getattr(name, "name", name) for name in given or {}}
        return {
            rv
            for rv in model.free_RVs
            if init == "jitter"
            and np.issubdtype(np.dtype(rv.dtype), np.floating)
            and model.rvs_to_initial_values.get(rv) is None
            and not named & {rv.name, model.rvs_to_values[rv].name}
        }

    # In the order and with the seeds of `pm.sample`: the same seed gives the same chains there.
    seeds = [int(rng.integers(2**30)) for rng in generators]
    if isinstance(initvals, dict | None):
        functions = make_initial_point_fns_per_chain(
            model=model, overrides=one, jitter_rvs=jittered(one), chains=len(generators)
        )
    else:
        functions = [
            make_initial_point_fns_per_chain(
                model=model, overrides=given, jitter_rvs=jittered(given), chains=1
            )[0]
            for given in each
        ]
    return [function(seed) for function, seed in zip(functions, seeds, strict=True)]
