"""The model of the shared parameters: a group is a row, and its effects are integrated out."""

import itertools
from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.gradients.arrays import array_value, leaf_arrays
from pymc_sgmcmc.gradients.metric import split_flat
from pymc_sgmcmc.integration.density_following import (
    derivatives,
    follow_density,
    places_of_gradients,
)
from pymc_sgmcmc.integration.group_centres import Centres
from pymc_sgmcmc.integration.group_density import GroupDensity
from pymc_sgmcmc.integration.group_rows import GroupRows, padded, ragged
from pymc_sgmcmc.integration.group_terms import GroupTerms
from pymc_sgmcmc.integration.laplace import log_integrals
from pymc_sgmcmc.integration.prior_following import Followed, follow_prior
from pymc_sgmcmc.integration.quadrature_points import Points
from pymc_sgmcmc.integration.reparametrised_models import own_name
from pymc_sgmcmc.latents.joint import without_latents

DIM = "group of rows"
"""Name of the dim along which the integrated model is sliced into batches."""


class _Data:
    """Arrays of an integrated model, with separate dims, of which only `DIM` is sliced."""

    def __init__(self, model: pm.Model, n_groups: int):
        self.model, self.n_groups = model, n_groups
        self.names = itertools.count()

    def add(self, name: str, value: np.ndarray, dims: tuple[str, ...] = ()) -> SharedVariable:
        """Add an array to the model."""
        name = f"{name} {next(self.names)}"
        shape = (*(None for _ in dims), *value.shape[len(dims) :])  # of a batch, or of all groups
        variable = pytensor.shared(value, name=name, shape=shape, borrow=True)
        self.model.named_vars[name] = variable
        unnamed = [f"axis {axis} of {name}" for axis in range(len(dims), value.ndim)]
        self.model.named_vars_to_dims[name] = (*dims, *unnamed)
        return variable

    def of(self, array: Variable) -> SharedVariable:
        """Return a view of an array."""
        return self.add(array.name or "array", array_value(array))

    def of_length(self, outputs: Sequence[Variable]) -> dict[Variable, SharedVariable]:
        """Return views of all other arrays with as many elements as there are groups."""
        return {
            array: self.of(array)
            for array in leaf_arrays(outputs, [])
            if self.n_groups in array_value(array).shape and array.name not in self.model.named_vars
        }


class IntegratedModel(pm.Model):
    """A model of the shared parameters, with the points at which its groups are evaluated."""

    centres: Centres
    points: Points
    rows_checked = 500
    """Number of groups at which checks in Python evaluate the model; each costs as many densities
    as it has rows, times the points."""

    is_costly = True
    """Integrals without their gradients would be compiled separately, for as long."""

    @quick_graphs()
    def settle(self, anchor: np.ndarray) -> None:
        """Find the points afresh around a flat anchor, so that they depend on nothing else."""
        start = self.initial_point()
        parts = split_flat(anchor, [value.shape for value in start.values()])
        point = {
            name: part.astype(start[name].dtype) for name, part in zip(start, parts, strict=True)
        }
        self.centres.move(point, afresh=True)


def names_of_integrated(model: pm.Model) -> list[str]:
    """Return the names of the effects that a model has integrated out, as its user wrote them."""
    if not isinstance(model, IntegratedModel):
        return []
    return [own_name(name) for name in model.centres.density.terms.names]


@quick_graphs()
def integrated_model(
    terms: GroupTerms, points: Points, follow: bool = False, pads: bool = False
) -> IntegratedModel:
    """Make the model whose likelihood is, for each group, the integral over its effects.

    Its free variables are those of ``terms.model`` except the effects. The likelihood is one
    potential with an element for each group that has rows, along the dim `DIM`. ``follow`` makes
    the points of two or three normal effects follow their prior, as those of other numbers do.
    ``pads`` gives all groups as many rows as the largest has, for backends with fixed shapes.
    """
    model = terms.model
    smaller = without_latents(model, terms.names, terms.variables, IntegratedModel)
    every = GroupRows(terms.group_of_row, terms.n_groups)
    groups = every.without_empty()
    smaller.add_coords({DIM: groups.numbers})
    centres = smaller.centres = Centres(GroupDensity(terms, every), groups, points, follow)
    smaller.points = points
    data = _Data(smaller, len(groups.numbers))
    numbers = data.add("group", groups.numbers, (DIM,))
    first = data.add("first row", groups.first, (DIM,))
    sizes = data.add("rows of group", groups.sizes, (DIM,))
    modes = data.add("modes", centres.modes, (DIM,))
    if pads:
        positions, places, counted = padded(first, sizes, int(groups.sizes.max()))
    else:
        (positions, places), counted = ragged(first, sizes), None
    if not groups.sorted:
        positions = data.add("rows by group", groups.order)[positions]
    placeholders = {terms.groups: numbers, terms.rows: positions, terms.places: places}
    for array, whole in terms.arrays.items():
        placeholders[whole] = data.of(array).astype(whole.dtype)
    for rv in smaller.free_RVs:
        placeholders[model.rvs_to_values[rv]] = smaller.rvs_to_values[rv]
    if centres.follow:
        scores = data.add("scores", centres.scores, (DIM,))
        of_rows = data.add("curvatures of rows", centres.of_rows, (DIM,))
    if centres.follow_density or not centres.follow:
        factors = data.add("factors", centres.factors, (DIM,))
        now = Followed(modes, factors, data.add("log scales", centres.log_scales, (DIM,)))
    if centres.follow_density:
        places = places_of_gradients(modes, factors, pt).astype(pytensor.config.floatX)
        gradients = terms.gradients_at_points(places, placeholders, counted)
        now = follow_density(now, scores, of_rows, *derivatives(factors, gradients, pt), pt)
    elif centres.follow:
        prior = terms.prior_derivatives(modes, placeholders)
        now = follow_prior(modes, scores, of_rows, *prior, pt)
    if not centres.follow_density:
        # The integral hardly changes with the points, so its gradient does not need theirs. Points
        # of a Sobol sequence have larger errors, which cancel only in the whole derivative.
        now = Followed(*map(disconnected_grad, now))
    x = points.x.astype(modes.dtype)[:, :, None, None]
    a = now.modes + sum(x[:, i] * now.factors[:, :, i] for i in range(terms.k))  # points first
    if centres.have_ranges:
        # Other points may be where likelihoods are rounded to 0, and gradients 0 times infinity.
        has_density = data.add("points with a density", centres.counted, (DIM,)).T
        a = pt.switch(has_density[:, :, None], a, now.modes)
    h = terms.log_joint_at_points(a.astype(pytensor.config.floatX), placeholders, counted)
    if centres.have_ranges:
        h = pt.switch(has_density, h, -np.inf)
    log_likelihood = log_integrals(h, now.log_scales.astype(h.dtype), points)
    own = data.of_length([log_likelihood])
    [log_likelihood] = clone_replace([log_likelihood], own, rebuild_strict=False)
    with smaller:
        pm.Potential("log_likelihood_of_groups", log_likelihood, dims=DIM)
    centres.move(smaller.initial_point())
    return smaller
