"""What a release needs: one version, and files that services can read."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import pymc_sgmcmc as sgm

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_one_version():
    """The package's is that of CITATION.cff; a recipe for conda must have one of its own."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    recipe = yaml.safe_load((ROOT / "conda-recipe/recipe.yaml").read_text(encoding="utf-8"))
    assert sgm.__version__ == citation["version"] == recipe["context"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(sgm.__version__)} ", changelog, re.MULTILINE)


def test_conda_has_the_same_requirements():
    recipe = yaml.safe_load((ROOT / "conda-recipe/recipe.yaml").read_text(encoding="utf-8"))
    run = [r.replace(" ", "").replace("pymc-base", "pymc") for r in recipe["requirements"]["run"]]
    assert run == [f"python{PROJECT['requires-python']}", *PROJECT["dependencies"]]


def test_extras():
    extras = PROJECT["optional-dependencies"]
    for name in ("all", "test"):
        [own] = [r for r in extras[name] if r.startswith(PROJECT["name"])]
        parts = re.search(r"\[(.*)\]", own)[1].split(",")
        assert set(parts) <= set(extras), name


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.stem)
def test_files_for_hosting(path):
    text = path.read_text(encoding="utf-8")
    read = yaml.safe_load(text)
    if path.parent.name == "workflows":
        assert {"name", "jobs"} <= read.keys()
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in re.findall(r"run: make (\S+)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    else:
        assert {"name", "description", "body"} <= read.keys()
