"""What killed processes leave in temporary folders is deleted by the next process."""

import os
import tempfile

import numpy as np
import pytensor
import pytest
from kills import ended, in_child, small_model, small_run, small_step

import pymc_sgmcmc as sgm
from pymc_sgmcmc.batches import shuffle_on_disk as shuffle
from pymc_sgmcmc.run import processes
from pymc_sgmcmc.temporary_folder import temporary_folder


def test_a_folder_lasts_as_long_as_its_process(tmp_path):
    def killed():
        with temporary_folder(tmp_path) as folder:
            (folder / "data").touch()
            os._exit(9)

    with temporary_folder(tmp_path) as alive:
        assert ended(in_child(killed)) == 9
        assert len(list(tmp_path.iterdir())) == 2
        (tmp_path / "pymc_sgmcmc_of_somebody_else").mkdir()
        with temporary_folder(tmp_path) as another:
            assert another.stat().st_mode & 0o077 == 0
            left = {p.name for p in tmp_path.iterdir()}
            assert left == {alive.name, another.name, "pymc_sgmcmc_of_somebody_else"}
    assert [p.name for p in tmp_path.iterdir()] == ["pymc_sgmcmc_of_somebody_else"]


def test_rows_of_a_killed_shuffle(tmp_path, monkeypatch):
    rows = {"x": np.arange(1000)}

    def killed():
        shuffle._deal = lambda *args: os._exit(9)
        sgm.shuffle_on_disk(rows, tmp_path, seed=1)

    assert ended(in_child(killed)) == 9
    assert len(list(tmp_path.iterdir())) == 1
    sgm.shuffle_on_disk(rows, tmp_path, seed=1)
    assert [p.name for p in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.slow(2)
def test_model_and_data_of_a_killed_run(tmp_path, monkeypatch):
    """They are in a file where workers are not forked."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        model = small_model()
        step = small_step(model)
        options = dict(draws=2, tune=1, chains=2, cores=2, chain_method="parallel")

        def killed():
            processes._Pool = lambda *args: os._exit(9)
            small_run(model, step, mp_ctx="spawn", **options)

        assert ended(in_child(killed)) == 9
        assert len(list(tmp_path.glob("*/run.pickle"))) == 1
        small_run(model, step, mp_ctx="fork", **options)
    assert list(tmp_path.glob("*/run.pickle")) == []
