"""A run that is killed in its exact phase ends as if it had never been."""

import json

import pytest
from kills import adapting_model, adapting_run, killed_after, same

import pymc_sgmcmc as sgm
from pymc_sgmcmc.exact.hamiltonian import Hamiltonian


@pytest.mark.long
def test_killed_in_the_exact_phase(tmp_path):
    """Twice, and resumed: the draws of the undisturbed run."""
    model, path = adapting_model(), tmp_path / "run.zarr"

    def run(path):
        return adapting_run(path, model, draws=30, tune=5, exact=True, ess=100)

    expected = run(tmp_path / "undisturbed.zarr")
    transitions = json.loads(expected.posterior.attrs["exact"])["transitions"]
    for made in (transitions - 1, transitions // 2):
        assert killed_after(lambda: run(path), made, Hamiltonian, "transition")
    assert sgm.ZarrStore(path).to_datatree().posterior.sizes["draw"] == 30
    assert same(run(path), expected)
