"""What the package imports is what pyproject.toml declares."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import pymc_sgmcmc

PACKAGE = Path(pymc_sgmcmc.__file__).parent
PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def names(requirements):
    return {re.match(r"[\w-]+", r)[0].lower().replace("-", "_") for r in requirements}


def imported_by(source: str) -> set[str]:
    """Top-level packages that a source imports, but for Python's own and this one."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - {"pymc_sgmcmc"}


def test_imports_are_declared():
    declared = names(PROJECT["dependencies"])
    extras = set().union(
        *(names(PROJECT["optional-dependencies"][x]) for x in ("jax", "zarr", "dask"))
    )
    extras |= {"h5py"}  # of a file that the user opened with it
    imported = {}
    for path in PACKAGE.rglob("*.py"):
        for name in imported_by(path.read_text(encoding="utf-8")):
            imported.setdefault(name, []).append(path.name)
    assert not imported.keys() - declared - extras, imported
    # matplotlib is PyMC's, for its progress bar; the rest of the declared is imported here.
    assert declared - imported.keys() <= {"matplotlib", "arviz"}


def test_downloads_of_the_examples_name_what_they_need(monkeypatch, tmp_path):
    """The loader of the notebooks' data, in a clone without them."""
    monkeypatch.syspath_prepend(str(PACKAGE.parent / "examples"))
    import datasets

    monkeypatch.setattr(datasets, "_folders", lambda: [tmp_path])
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(FileNotFoundError, match=r"pip install pooch, which '\.\[docs\]' contains"):
        datasets.find("mnist/train-images-idx3-ubyte.gz")
    assert "pooch" in names(PROJECT["optional-dependencies"]["docs"])
