"""Groups in records are gathered and scattered as in separate arrays, whatever their shapes."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_sgmcmc import MSGNHT_S
from pymc_sgmcmc.chain import Chain
from pymc_sgmcmc.group_records import GroupRecords
from pymc_sgmcmc.local_slots import Touched, gathered, scattered

QUICK = {"mode": "FAST_COMPILE"}
USERS, ITEMS = 5, 4
SHAPES = {  # by the axis of groups; the last three are only read
    "user effect": ((USERS,), 0, "users", "float32"),
    "user factors": ((2, USERS), 1, "users", "float32"),
    "item factors": ((ITEMS, 2), 0, "items", "float32"),
    "shared": ((3,), None, None, "float32"),
    "effect's momentum": ((USERS,), 0, "users", "float32"),
    "factors' momentum": ((2, USERS), 1, "users", "float32"),
    "items' momentum": ((ITEMS, 2), 0, "items", "float64"),
    "effect's scale": ((USERS,), 0, "users", "float32"),
    "items' scale in other precision": ((ITEMS, 2), 0, "items", "float16"),
    "shared scale": ((3, 3), None, None, "float32"),
}
N_MOVING = 7
GROUPS = {"users": [4, 0, 4], "items": [1, 2, 3]}
WEIGHTS = {"users": [1, 2, 0], "items": [1, 1, 1]}  # the third slot of users is left over


def arrays_and_touched():
    arrays = [pt.tensor(shape=shape, dtype=dtype) for shape, _, _, dtype in SHAPES.values()]
    groups, weights = (
        {k: pt.as_tensor(np.array(v)) for k, v in of.items()} for of in (GROUPS, WEIGHTS)
    )
    touched = [
        None if of is None else Touched(groups[of], weights[of], axis)
        for _, axis, of, _ in SHAPES.values()
    ]
    values = [
        (100 * k + np.arange(np.prod(shape)).reshape(shape)).astype(dtype)
        for k, (shape, _, _, dtype) in enumerate(SHAPES.values())
    ]
    return arrays, touched, values


def test_which_arrays_stand_together():
    arrays, touched, _ = arrays_and_touched()
    moving, read = GroupRecords(arrays, touched, N_MOVING).packed(arrays)
    # "shared" apart; users' effect, momentum and scale; users' factors and their momentum; items'
    # factors; their momentum, which has another type
    assert [m.type.shape for m in moving] == [
        (3,), (3 * USERS,), (2 * USERS, 2), (ITEMS, 2), (ITEMS, 2)
    ]  # fmt: skip
    assert [r.type.shape for r in read] == [(ITEMS, 2), (3, 3)]


def test_round_trip():
    arrays, touched, values = arrays_and_touched()
    records = GroupRecords(arrays, touched, N_MOVING)
    moving, _ = records.packed(arrays)
    function = pytensor.function(
        arrays, records.unpacked(moving), on_unused_input="ignore", **QUICK
    )
    for result, value in zip(function(*values), values[:N_MOVING], strict=True):
        np.testing.assert_array_equal(result, value, strict=True)


def test_slots_are_those_of_separate_arrays():
    arrays, touched, values = arrays_and_touched()
    records = GroupRecords(arrays, touched, N_MOVING)
    taken = records.gathered(*records.packed(arrays), touched)
    both = pytensor.function(arrays, [*taken, *gathered(arrays, touched)], **QUICK)(*values)
    for mine, expected in zip(both[: len(arrays)], both[len(arrays) :], strict=True):
        np.testing.assert_array_equal(mine, expected, strict=True)

    def moved(slots):
        return [(s + 1000 + pt.arange(s.size).reshape(s.shape)).astype(s.dtype) for s in slots]

    moving, read = records.packed(arrays)
    new = moved(records.gathered(moving, read, touched)[:N_MOVING])
    mine = records.unpacked(records.scattered(moving, new, touched))
    some = arrays[:N_MOVING], touched[:N_MOVING]
    expected = scattered(some[0], moved(gathered(*some)), some[1])
    both = pytensor.function(arrays, [*mine, *expected], on_unused_input="ignore", **QUICK)(*values)
    for result, wanted in zip(both[:N_MOVING], both[N_MOVING:], strict=True):
        np.testing.assert_array_equal(result, wanted, strict=True)


@pytest.mark.slow(10)
def test_arrays_stay_contiguous():
    """Otherwise numba would compile the second call once more, for arrays with gaps."""
    groups = np.repeat(np.arange(30), 2)
    with pm.Model() as model:
        effect = pm.Normal("effect", shape=30)
        pm.Normal("y", effect[groups], 1, observed=np.zeros(60))
        step = MSGNHT_S(step_size=0.1, batch_size=4, thin=5, local=["effect"])
    point, chain = model.initial_point(), Chain(step.kernel, np.random.default_rng(0), tune=0)
    chain.draw(point)
    for name in ("p", "xi"):
        assert all(a.flags.c_contiguous for a in chain.state[name])
