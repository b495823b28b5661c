"""The joint density of each group's rows and effects, as functions of NumPy arrays."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType
from pytensor.compile.mode import get_mode
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.backends.cores import n_cores
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.gradients.model_gradient import explicit_data
from pymc_sgmcmc.integration.group_rows import GroupRows, ragged
from pymc_sgmcmc.integration.group_terms import GroupTerms
from pymc_sgmcmc.pymc_internals import jitted, runs_python


def mapped(function: Callable[[Any], Any], parts: Sequence[Any], in_threads: bool) -> list:
    """Evaluate a function of several parts, in one thread or in as many as there are cores."""
    with ThreadPoolExecutor(n_cores() if in_threads else 1) as pool:
        return list(pool.map(function, parts))


class GroupDensity:
    """log p(y_j, a_j | shared) of groups j at given effects, compiled when first evaluated.

    It is not finite where effects put a parameter of the likelihood out of its range.
    """

    def __init__(self, terms: GroupTerms, rows: GroupRows):
        self.terms, self.rows = terms, rows
        self._shared = [v for v in terms.model.value_vars if v not in terms.values]
        mode = get_mode(None)
        if backend_of(mode).pads_lengths:  # groups have different sizes
            mode = get_mode("NUMBA")
        mode = mode.including("local_remove_check_parameter")
        self._mode = with_cheap_calls(mode)
        linker = self._mode.linker
        self.in_threads = isinstance(linker, NumbaLinker) and type(linker) is not NumbaLinker
        """Whether several threads may evaluate it at a time; known once it is compiled."""

    def at_points(
        self, point: PointType, index: np.ndarray, effects: np.ndarray, rows: GroupRows
    ) -> np.ndarray:
        """Evaluate m groups at several effects, shape (points, m, k); the result has shape (points,
        m).

        ``index`` has the groups' places in ``rows``, and ``point`` has values of the shared
        parameters.
        """
        [h] = self._at_points(point, index, effects, rows)
        return h

    def derivatives(
        self, point: PointType, index: np.ndarray, effects: np.ndarray, rows: GroupRows
    ) -> list[np.ndarray]:
        """Evaluate with gradient and Hessian at effects, shape (m, k): (m,), (m, k), (m, k, k)."""
        return self._derivatives(point, index, effects, rows)

    def prior_derivatives(
        self, point: PointType, index: np.ndarray, effects: np.ndarray, rows: GroupRows
    ) -> list[np.ndarray]:
        """Return gradient and Hessian of the effects' prior, shapes (m, k) and (m, k, k)."""
        return self._prior_derivatives(point, index, effects, rows)

    def gradients_at_points(
        self, point: PointType, index: np.ndarray, effects: np.ndarray, rows: GroupRows
    ) -> np.ndarray:
        """Return gradients in m groups' effects, shape (points, m, k), at several of these."""
        [gradients] = self._gradients_at_points(point, index, effects, rows)
        return gradients

    def map(self, function: Callable[[Any], Any], parts: Sequence[Any]) -> list:
        """Evaluate a function of the density for parts of the groups, in threads if possible."""
        return mapped(function, parts, self.in_threads)

    @cached_property
    def _at_points(self) -> Callable:
        terms = self.terms
        return self._compiled(
            pt.dtensor3("effects"), lambda a, p: [terms.log_joint_at_points(a, p)]
        )

    @cached_property
    def _gradients_at_points(self) -> Callable:
        terms = self.terms
        return self._compiled(
            pt.dtensor3("effects"), lambda a, p: [terms.gradients_at_points(a, p)]
        )

    @cached_property
    def _derivatives(self) -> Callable:
        return self._compiled(pt.dmatrix("effects"), self.terms.derivatives)

    @cached_property
    def _prior_derivatives(self) -> Callable:
        return self._compiled(
            pt.dmatrix("effects"),
            lambda a, p: list(self.terms.prior_derivatives(a, p)),
        )

    @quick_graphs()
    def _compiled(self, effects: TensorVariable, build: Callable) -> Callable:
        terms = self.terms
        groups, first, sizes, order = pt.lvectors("groups", "first", "sizes", "order")
        positions, places = ragged(first, sizes)
        if not self.rows.sorted:
            positions = order[positions]
        placeholders: dict = {terms.groups: groups, terms.rows: positions, terms.places: places}
        placeholders |= {whole: array.astype(whole.dtype) for array, whole in terms.arrays.items()}
        outputs = build(effects.astype(pytensor.config.floatX), placeholders)
        outputs, data = explicit_data(outputs, {})
        function = pytensor.function(
            [*self._shared, *data.values(), order, groups, first, sizes, effects],
            outputs,
            mode=self._mode,
            on_unused_input="ignore",
        )
        function.trust_input = True
        self.in_threads = self.in_threads and not runs_python(function)
        function = jitted(function) if self.in_threads else function
        arrays = [array_value(array) for array in data]

        def call(point: PointType, index: np.ndarray, effects: np.ndarray, rows: GroupRows):
            values = [np.asarray(point[v.name], v.dtype) for v in self._shared]
            of_groups = rows.numbers[index], rows.first[index], rows.sizes[index]
            return function(*values, *arrays, rows.order, *of_groups, effects)

        return call
