"""Where numba finds no place to keep what it compiled, the package works all the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pymc_sgmcmc

PACKAGE = Path(pymc_sgmcmc.__file__).parent

SHUFFLE = """
import numpy as np
import pymc_sgmcmc
from pymc_sgmcmc.batches import permutation

print(pymc_sgmcmc.__file__)
assert not permutation._shuffle.stats.cache_path
rows = np.empty(5, np.int64)
permutation.permutation(np.random.default_rng(0), 5).fill(rows, 0)
assert sorted(rows) == list(range(5))
"""


@pytest.mark.slow(7)
def test_import_and_shuffle(tmp_path):
    """Neither beside the sources nor in a home: a file is where each folder would be."""
    copy = shutil.copytree(
        PACKAGE, tmp_path / "pymc_sgmcmc", ignore=shutil.ignore_patterns("__pycache__")
    )
    for folder in {source.parent for source in copy.rglob("*.py")}:
        (folder / "__pycache__").touch()
    nowhere = tmp_path / "file"
    nowhere.touch()
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    env |= {
        "HOME": str(nowhere),
        "XDG_CACHE_HOME": str(nowhere),
        "LOCALAPPDATA": str(nowhere),
        "MPLCONFIGDIR": str(tmp_path),
        "PYTENSOR_FLAGS": f"cxx=,base_compiledir={tmp_path / 'pytensor'}",
        "PYTHONPATH": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SHUFFLE], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == copy
