"""The search for an interpreter that `make` begins with, among interpreters that only pretend."""

import subprocess
from pathlib import Path

import pytest

FIND = Path(__file__).parents[2] / ".ci" / "find_python"


def pretend(path, version):
    """A program that answers what it is asked as a Python of this version would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    asked = 'case "$2" in *version_info*"(3, 12)"*)'
    path.write_text(
        f"#!/bin/sh\n[ $1 = -c ] && {asked} exit {int(version < (3, 12))};; esac\nexit 2\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def find(tmp_path):
    """Run the script, with nothing but the folder "path" on PATH."""
    (tmp_path / "path").mkdir()

    def run(asked="", **environment):
        environment = {"PATH": str(tmp_path / "path"), "HOME": str(tmp_path)} | environment
        return subprocess.run(
            ["/bin/sh", str(FIND), asked],
            env=environment, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip

    return run


def assert_refused(result, *texts):
    """One line, which says what to do."""
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    for text in (*texts, "Install one", "pyenv install 3.12"):
        assert text in line


def test_too_old(find, tmp_path):
    for name in ("python3.11", "python3", "python"):
        pretend(tmp_path / "path" / name, (3, 11))
    assert_refused(find(), "No Python 3.12 or newer found", "make PYTHON=")


def test_none(find):
    assert_refused(find(), "No Python 3.12 or newer found")


@pytest.mark.parametrize("name", ["python3.12", "python3.14", "python3", "python"])
def test_on_path(find, tmp_path, name):
    pretend(tmp_path / "path" / "python3.11", (3, 11))
    new = pretend(tmp_path / "path" / name, (3, 12))
    result = find()
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, new, "")


def test_the_one_asked_for(find, tmp_path):
    pretend(tmp_path / "path" / "python3.13", (3, 13))
    own = pretend(tmp_path / "elsewhere" / "mine", (3, 12))
    assert find(own).stdout.strip() == own
    old = pretend(tmp_path / "elsewhere" / "old", (3, 11))
    assert_refused(find(old), f"PYTHON={old} is not a Python 3.12 or newer")
    assert_refused(find("/nowhere/python"), "PYTHON=/nowhere/python is not")


@pytest.mark.parametrize("root", [".pyenv", "other"])
def test_versions_of_pyenv(find, tmp_path, root):
    """Under ~/.pyenv, or under PYENV_ROOT alone if that is set; versions too old are left out."""
    pretend(tmp_path / "path" / "python3", (3, 11))
    pretend(tmp_path / ".pyenv" / "versions" / "3.11.9" / "bin" / "python", (3, 11))
    new = pretend(tmp_path / root / "versions" / "3.12.7" / "bin" / "python", (3, 12))
    environment = {} if root == ".pyenv" else {"PYENV_ROOT": str(tmp_path / root)}
    result = find(**environment)
    assert (result.returncode, result.stdout.strip()) == (0, new)
