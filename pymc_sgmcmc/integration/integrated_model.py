"""The model of what groups share: a group is a row, and its effects are integrated out."""

import itertools
from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.arrays import array_value, leaf_arrays
from pymc_sgmcmc.integration.group_terms import GroupTerms
from pymc_sgmcmc.integration.laplace import log_integrals
from pymc_sgmcmc.integration.points import Points
from pymc_sgmcmc.latents.joint import without_latents

DIM = "group of rows"
"""Name of the dim along which the integrated model is sliced into batches."""


class GroupRows:
    """The rows of each group, in memory: group by group, one after the other."""

    def __init__(self, group_of_row: np.ndarray, n_groups: int, empty: bool = False):
        sizes = np.bincount(group_of_row, minlength=n_groups)
        self.order = np.argsort(group_of_row, kind="stable")
        self.numbers = np.flatnonzero(sizes >= (not empty))
        """Those that have rows, or all."""
        self.sizes = sizes[self.numbers]
        self.first = (np.cumsum(sizes) - sizes)[self.numbers]

    @property
    def sorted(self) -> bool:
        """Whether the data already lie group by group."""
        return bool((np.diff(self.order) > 0).all())


def ragged(first: TensorVariable, sizes: TensorVariable):
    """Positions ``first[j], first[j] + 1, ...``, for each j so many, and the j of each."""
    ends = pt.cumsum(sizes)
    places = pt.repeat(pt.arange(sizes.shape[0]), sizes)
    return pt.arange(ends[-1]) + (first - ends + sizes)[places], places


class _Data:
    """Arrays of an integrated model, with dims of their own: only `DIM` is sliced."""

    def __init__(self, model: pm.Model, n_groups: int):
        self.model, self.n_groups = model, n_groups
        self.names = itertools.count()

    def add(self, name: str, value: np.ndarray, dims: tuple[str, ...] = ()) -> SharedVariable:
        """Make an array known to the model."""
        name = f"{name} {next(self.names)}"
        shape = (*(None for _ in dims), *value.shape[len(dims) :])  # of a batch, or of all
        variable = pytensor.shared(value, name=name, shape=shape, borrow=True)
        self.model.named_vars[name] = variable
        unnamed = [f"axis {axis} of {name}" for axis in range(len(dims), value.ndim)]
        self.model.named_vars_to_dims[name] = (*dims, *unnamed)
        return variable

    def of(self, array: Variable) -> SharedVariable:
        """Make a view of an array."""
        return self.add(array.name or "array", array_value(array))

    def of_length(self, outputs: Sequence[Variable]) -> dict[Variable, SharedVariable]:
        """Make views of all other arrays that have as many elements as there are groups."""
        return {
            array: self.of(array)
            for array in leaf_arrays(outputs, [])
            if self.n_groups in array_value(array).shape and array.name not in self.model.named_vars
        }


def integrated_model(terms: GroupTerms, points: Points) -> pm.Model:
    """Make the model whose likelihood is, for each group, the integral over its effects.

    Its free variables are those of ``terms.model`` but the effects. The likelihood is one
    potential with an element for each group that has rows, along the dim `DIM`.
    """
    model = terms.model
    smaller = without_latents(model, terms.names, terms.variables)
    groups = GroupRows(terms.group_of_row, terms.n_groups)
    smaller.add_coords({DIM: groups.numbers})
    data = _Data(smaller, len(groups.numbers))
    numbers = data.add("group", groups.numbers, (DIM,))
    first = data.add("first row", groups.first, (DIM,))
    sizes = data.add("rows of group", groups.sizes, (DIM,))
    positions, places = ragged(first, sizes)
    if not groups.sorted:
        positions = data.add("rows by group", groups.order)[positions]
    placeholders = {terms.groups: numbers, terms.rows: positions, terms.places: places}
    placeholders |= {whole: data.of(array) for array, whole in terms.arrays.items()}
    for rv in smaller.free_RVs:
        placeholders[model.rvs_to_values[rv]] = smaller.rvs_to_values[rv]
    log_likelihood = log_integrals(
        lambda a: terms.log_joint(a, placeholders),
        lambda a: terms.log_joint_at_points(a, placeholders),
        pt.zeros((numbers.shape[0], terms.k), dtype=pytensor.config.floatX),
        points,
    )
    own = data.of_length([log_likelihood])
    [log_likelihood] = clone_replace([log_likelihood], own, rebuild_strict=False)
    with smaller:
        pm.Potential("log_likelihood_of_groups", log_likelihood, dims=DIM)
    return smaller
