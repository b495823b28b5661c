"""Words of the splitting integrators: a letter that has no meaning is refused."""

import pytensor.tensor as pt
import pytest

from pymc_sgmcmc.samplers.splitting import (
    EULER,
    LETTERS,
    MOMENTUM_FIRST,
    SYMMETRIC,
    Phase,
    held,
    integrate,
)


def advanced(word):
    one = pt.constant(1.0)
    return integrate(
        word,
        Phase([one], [one], [one]),
        pt.constant(0.1),
        force=lambda theta: [-theta[0]],
        noise=lambda: [one],
        diffusion=1.0,
        thermostat=held,
    )


@pytest.mark.parametrize("word", [EULER, SYMMETRIC, MOMENTUM_FIRST, *LETTERS])
def test_known_letters(word):
    assert [len(part) for part in advanced(word)] == [1, 1, 1]


@pytest.mark.parametrize(("word", "letter"), [("ABOBa", "a"), ("BAOAB ", " "), ("KAK", "K")])
def test_unknown_letter_is_named(word, letter):
    with pytest.raises(ValueError, match=f"'{letter}' in the word '{word}' is none of the letters"):
        advanced(word)
