"""One numbering for the rows of several likelihoods, each with rows of its own.

With N_1 rows of the first likelihood and N_2 of the second, i runs from 0 to N_1 + N_2 - 1::

    log p(y | theta) = sum_i [i < N_1] log p(y_1i | theta) + [i >= N_1] log p(y_2,i-N_1 | theta)

A batch of n rows of both, scaled by (N_1 + N_2) / n, is then unbiased like that of one likelihood.
Every likelihood evaluates all rows of the batch and counts only its own: a row of another
likelihood is replaced by one of its own rows, each in turn, so that no group gets far more than its
share of rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.arrays import Array
from pymc_sgmcmc.gradients.batch_terms import BatchModel, Term


def joined_terms(parts: Sequence[BatchModel], index: TensorVariable) -> list[Term]:
    """Return all terms as functions of row numbers that cover all parts, from first to last.

    Arrays that several parts slice share the placeholder of the first of these parts.
    """
    terms: list[Term] = []
    arrays: dict[Array, TensorVariable] = {}
    begin = pt.constant(0, dtype=index.dtype)
    for part in parts:
        wholes = {whole: arrays.setdefault(array, whole) for array, whole in part.arrays.items()}
        array, axis = part.axes[0]
        length = arrays[array].shape[axis]
        is_own = pt.and_(index >= begin, index < begin + length)
        logps = clone_replace(
            [term.logp for term in part.terms], {**wholes, part.index: (index - begin) % length}
        )
        for term, logp in zip(part.terms, logps, strict=True):
            others = [k for k in range(logp.ndim) if k != term.axis]
            own = pt.switch(pt.expand_dims(is_own, others), logp, 0)
            terms.append(replace(term, logp=own.astype(logp.dtype)))
        begin = begin + length
    return terms
