"""A symmetric matrix, or its diagonal, from few of its products with vectors."""

from collections.abc import Callable, Sequence

import numpy as np

type Times = Callable[[np.ndarray], np.ndarray]
"""Multiplies the matrix by each of some vectors, shape (m, d)."""

STRIDES = (1, 3, 17)
"""Distances of a variable's elements that are probed together for the diagonal: all of them if the
elements are independent, every third one in a random walk."""
MANY_GROUPS = 8
"""Smallest length of a variable's first axis for which its groups are probed together."""


def matrix_by_products(
    times: Times, parts: Sequence[slice], shapes: Sequence[tuple[int, ...]], rtol: float
) -> np.ndarray:
    """Find a matrix whose rows and columns are the elements of several variables.

    For variables whose groups (the first axis) are independent given everything else, all groups
    are probed together. ``parts`` has the place of each variable among the d elements, and ``rtol``
    is the relative error of a product.
    """
    size = parts[-1].stop if parts else 0
    matrix = np.zeros((size, size))
    one_by_one = np.ones(size, dtype=bool)
    for part, blocks in _blocks_of_groups(times, parts, shapes, rtol):
        one_by_one[part] = False
        for rows, columns, values in blocks:
            matrix[rows, columns] = values
    rest = np.flatnonzero(one_by_one)
    if rest.size:
        products = times(np.eye(size)[rest])
        matrix[rest], matrix[:, rest] = products, products.T
    return (matrix + matrix.T) / 2


def _blocks_of_groups(times, parts, shapes, rtol) -> list[tuple[slice, list[tuple]]]:
    """Find variables with independent groups: their elements, and blocks of the matrix.

    A block has row numbers, column numbers and values. Groups are independent if products with two
    random vectors agree on each group's own block. Of coupled variables with different numbers of
    groups, those with the most groups are taken.
    """
    rng = np.random.default_rng(20243)
    size = parts[-1].stop if parts else 0
    grouped = {
        k: np.arange(part.start, part.stop).reshape(shape[0], -1)
        for k, (part, shape) in enumerate(zip(parts, shapes, strict=True))
        if shape and shape[0] >= MANY_GROUPS and np.prod(shape) > 0
    }
    found: dict[int, list[tuple]] = {}
    coupled: dict[int, set[int]] = {}
    for k, own in grouped.items():
        weights = rng.uniform(0.5, 1.5, (2, len(own)))
        vectors = np.zeros((2, own.shape[1], size))
        for j, elements in enumerate(own.T):
            vectors[:, j, elements] = weights
        products = times(vectors.reshape(-1, size)).reshape(vectors.shape)
        atol = rtol * np.abs(products).max(initial=0)
        independent, blocks, coupled[k] = True, [], set()
        for m, others in grouped.items():
            if len(others) != len(own):
                if np.any(products[:, :, others]):
                    coupled[k].add(m)
                continue
            one, two = products[:, :, others] / weights[:, None, :, None]
            independent &= np.allclose(one, two, rtol=rtol, atol=atol)
            rows, columns = np.broadcast_arrays(others[None], own.T[:, :, None])
            blocks.append((rows, columns, one))
        if independent:
            found[k] = blocks
    apart: list[int] = []
    for k in sorted(found, key=lambda k: -len(grouped[k])):
        if not any(k in coupled[other] or other in coupled[k] for other in apart):
            apart.append(k)
    return [(parts[k], found[k]) for k in apart]


def diagonal_by_products(times: Times, parts: Sequence[slice], rtol: float) -> np.ndarray:
    """Find the diagonal of a matrix, shape (d,).

    Elements far apart (`STRIDES`) are probed together with two random vectors: where these agree,
    the diagonal is known; for the other elements unit vectors are used.
    """
    rng = np.random.default_rng(20243)
    size = parts[-1].stop if parts else 0
    diagonal = np.full(size, np.nan)
    left = np.ones(size, dtype=bool)

    def probe(elements: np.ndarray) -> np.ndarray:
        vector = np.zeros(size)
        vector[elements] = rng.uniform(0.5, 1.5, size=elements.size)
        return times(vector[None])[0, elements] / vector[elements]

    for stride in STRIDES:
        for part in parts:
            for first in range(stride):
                together = np.arange(part.start + first, part.stop, stride)
                together = together[left[together]]
                if together.size > 2:
                    one, two = probe(together), probe(together)
                    known = np.isclose(one, two, rtol=rtol, atol=0, equal_nan=True)
                    diagonal[together[known]] = one[known]
                    left[together[known]] = False
    for k in np.flatnonzero(left):
        diagonal[k] = probe(np.array([k]))[0]
    return diagonal
