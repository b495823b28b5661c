"""Latent variables whose support depends on a parameter, for which Fisher's identity fails."""

from collections.abc import Sequence

import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors


def refuse_moving_support(model: pm.Model, latent: Variable, latents: Sequence[Variable]) -> None:
    """Raise an error for a latent variable whose support depends on a parameter.

    The gradient at a draw holds the draw fixed, so it misses how the edge of the support moves.
    """
    transform = model.rvs_to_transforms[latent]
    if transform is None:
        return
    backward = transform.backward(latent.type("unconstrained"), *latent.owner.inputs)
    parameters = set(model.free_RVs) - set(latents)
    for rv in ancestors([backward], blockers=latents):
        if rv in parameters:
            raise ValueError(
                f"The support of '{latent.name}' depends on '{rv.name}', and gradients given draws "
                f"of '{latent.name}' miss how its edge moves. Write it with a variable of fixed "
                f"support: where '{latent.name}' is uniform from 0 to '{rv.name}', for example, "
                f"as '{rv.name}' times a variable that is uniform from 0 to 1. Name that one in "
                "latents=."
            )
