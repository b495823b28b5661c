"""Garbage is collected less often while something is compiled, and as before afterwards."""

import gc

import pytensor
import pytensor.tensor as pt
import pytest

from pymc_sgmcmc.backends.compile_time import THRESHOLDS, quick_graphs, rare_collections
from pymc_sgmcmc.gradients.model_gradient import gradient_source

USUAL = (700, 10, 10)


@pytest.fixture(autouse=True)
def _thresholds_as_they_were():
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


def test_until_the_last_user_has_left():
    """They leave in any order, as threads do, or with an error."""
    one, other = rare_collections(), rare_collections()
    one.__enter__()
    other.__enter__()
    assert gc.get_threshold() == THRESHOLDS
    one.__exit__(None, None, None)
    assert gc.get_threshold() == THRESHOLDS
    other.__exit__(None, None, None)
    assert gc.get_threshold() == USUAL
    with pytest.raises(OSError, match="unlucky"), rare_collections():
        raise OSError("unlucky")
    assert gc.get_threshold() == USUAL


@pytest.mark.parametrize("own", [(0, 10, 10), (THRESHOLDS[0] + 1, 10, 10)])
def test_what_is_rarer_already_stays(own):
    gc.set_threshold(*own)
    with rare_collections():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_traces_are_left_out_of_what_is_built_only(regression, monkeypatch):
    """A gradient source is built so, and the user's graphs have their traces."""
    seen = []
    monkeypatch.setattr(
        "pymc_sgmcmc.gradients.model_gradient.tidy",
        lambda gradients: seen.append((gc.get_threshold(), pt.exp(1.0).tag)) or gradients,
    )
    with pytensor.config.change_flags(traceback__limit=8):
        gradient_source(regression, regression.value_vars, batch_size=20)
        [(thresholds, tag)] = seen
        assert thresholds == THRESHOLDS
        assert not any(tag.trace)
        assert any(pt.exp(1.0).tag.trace)
        with quick_graphs():
            assert not any(pt.exp(1.0).tag.trace)
    assert gc.get_threshold() == USUAL
