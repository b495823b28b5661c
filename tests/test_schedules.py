"""Step sizes by their formulas."""

import numpy as np
import pytest

from pymc_sgmcmc.schedules import BlockDecay, Cyclical, PolynomialDecay, as_schedule, step_sizes

UPDATES = np.arange(40)


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        (0.3, lambda t: 0.3),
        (np.float32(0.5), lambda t: 0.5),
        (PolynomialDecay(0.1, 2.0, 0.7), lambda t: 0.1 * (2.0 + t) ** -0.7),
        (BlockDecay(0.4, every=10, unit="updates"), lambda t: 0.4 / 2 ** (t // 10)),
        (BlockDecay(0.4, every=7, unit="updates", factor=0.9), lambda t: 0.4 * 0.9 ** (t // 7)),
        (Cyclical(0.2, period=8), lambda t: 0.1 * (np.cos(np.pi * (t % 8) / 8) + 1)),
        (
            Cyclical(0.2, period=8, floor=0.3),
            lambda t: max(0.06, 0.1 * (np.cos(np.pi * (t % 8) / 8) + 1)),
        ),
        (lambda t: 0.1 / (1 + t), lambda t: 0.1 / (1 + t)),
    ],
)
def test_formula(schedule, formula):
    values = step_sizes(as_schedule(schedule), 0, len(UPDATES), updates_per_epoch=3.5)
    np.testing.assert_allclose(values, [formula(t) for t in UPDATES])
    assert values.dtype == np.float64


def test_epochs():
    """With 2.5 updates per epoch, blocks of 2 epochs are 5 updates long."""
    values = step_sizes(BlockDecay(1.0, every=2), 0, 12, updates_per_epoch=2.5)
    np.testing.assert_allclose(values, [1.0] * 5 + [0.5] * 5 + [0.25] * 2)


@pytest.mark.parametrize("schedule", [0.1, Cyclical(0.1, 6), lambda t: 0.1])
def test_step_size_of_one_update(schedule):
    """A scalar, from which a float can be made."""
    assert np.shape(as_schedule(schedule)(0)) == ()
    assert float(as_schedule(schedule)(0)) == 0.1


@pytest.mark.parametrize(
    "schedule", [PolynomialDecay(0.1), Cyclical(0.2, 6), lambda t: 1 / (t + 1)]
)
def test_any_split_into_calls_gives_the_same_steps(schedule):
    schedule = as_schedule(schedule)
    parts = [step_sizes(schedule, a, b - a, 1.0) for a, b in [(0, 7), (7, 8), (8, 40)]]
    np.testing.assert_array_equal(np.concatenate(parts), step_sizes(schedule, 0, 40, 1.0))


def test_callable_is_given_plain_update_numbers():
    seen = []

    def schedule(t):
        seen.append(t)
        return 0.1

    step_sizes(as_schedule(schedule), 5, 3, 1.0)
    assert seen == [5, 6, 7]
    assert all(type(t) is int for t in seen)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: as_schedule(0),
            r"step_size must be a positive finite number, got 0\.0\. Start small, for example",
        ),
        (lambda: as_schedule(-1), r"step_size .* positive .* got -1"),
        (lambda: as_schedule(np.nan), r"step_size .* positive .* got nan"),
        (
            lambda: PolynomialDecay(a=0.0),
            r"PolynomialDecay\(a=\) .* positive .* got 0\.0\. .* PolynomialDecay\(a=0\.01",
        ),
        (lambda: PolynomialDecay(1, b=-1), r"PolynomialDecay\(b=\) .* got -1"),
        (lambda: PolynomialDecay(1, c=2), r"PolynomialDecay\(c=\) must be .* in \(0, 1\], got 2"),
        (lambda: PolynomialDecay(1, c=np.inf), r"PolynomialDecay\(c=\) .* got inf"),
        (
            lambda: BlockDecay(-0.1, 3),
            r"BlockDecay\(initial=\) .* got -0\.1\. .* BlockDecay\(initial=0\.01",
        ),
        (lambda: BlockDecay(0.1, 0), r"BlockDecay\(every=\) .* got 0"),
        (
            lambda: BlockDecay(0.1, 3, "draws"),
            r"BlockDecay\(unit=\).*'epochs' or 'updates'.*'draws'",
        ),
        (lambda: BlockDecay(0.1, 3, factor=1.5), r"BlockDecay\(factor=\).*\(0, 1\].*1.5"),
        (
            lambda: Cyclical(0.0, 3),
            r"Cyclical\(initial=\) .* got 0\.0\. .* Cyclical\(initial=0\.01",
        ),
        (lambda: Cyclical(0.1, np.nan), r"Cyclical\(period=\) .* got nan"),
        (lambda: Cyclical(0.1, 0), r"Cyclical\(period=\) must be .*, at least 1, got 0"),
        (lambda: Cyclical(0.1, 3, floor=1.0), r"Cyclical\(floor=\).*\[0, 1\).*1.0"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("value", ["fast", None, [0.1, 0.2]])
def test_neither_number_nor_schedule(value):
    with pytest.raises(TypeError, match=r"step_size must be a number, a schedule or a callable"):
        as_schedule(value)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_callable_with_a_bad_value_is_refused_by_update(value):
    schedule = as_schedule(lambda t: value if t == 12 else 0.1)
    with pytest.raises(ValueError, match=rf"step size .*{value}.* at update 12: .*positive"):
        step_sizes(schedule, 10, 5, 1.0)
