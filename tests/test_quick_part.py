"""What `make test-quick` runs still holds what must never be left out."""

import subprocess
import sys
from pathlib import Path

import pytest
from samplers import SIMPLEX, UNCONSTRAINED

ROOT = Path(__file__).parents[1]
BAD_INPUT = ["tests/test_errors.py", "tests/test_arguments.py"]
pytestmark = pytest.mark.slow(10)


def collected(*options):
    command = [sys.executable, "-m", "pytest", "-n", "0", "-o", "addopts=", "--collect-only", "-q"]
    result = subprocess.run(
        [*command, *options, "tests/test_samplers.py", *BAD_INPUT],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return {line for line in result.stdout.splitlines() if "::" in line}


@pytest.fixture(scope="module")
def quick():
    return collected("-m", "not slow")


@pytest.mark.parametrize(
    ("test", "samplers"),
    [
        ("test_moments[{}-JAX]", UNCONSTRAINED),
        ("test_minibatch_noise[{}-JAX]", UNCONSTRAINED),
        ("test_normal_gamma[{}]", UNCONSTRAINED),
        ("test_moments_on_simplexes[{}]", SIMPLEX),
    ],
)
def test_every_sampler_draws_from_its_posterior(quick, test, samplers):
    for sampler in samplers:
        assert f"tests/test_samplers.py::{test.format(sampler.name)}" in quick


def test_all_bad_input_is_refused(quick):
    of_files = {name for name in collected() if name.startswith(tuple(BAD_INPUT))}
    assert len(of_files) > 50
    assert of_files <= quick


def test_what_compiles_long_is_left_out(quick):
    assert not [name for name in quick if name.endswith(("-NUMBA]", "-CVM]"))]
