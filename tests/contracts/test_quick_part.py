"""What `make test-quick` runs still holds what must never be left out."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from samplers import SIMPLEX, UNCONSTRAINED

ROOT = Path(__file__).parents[2]
BAD_INPUT = ["tests/contracts/test_errors.py", "tests/run/test_sample_arguments.py"]
pytestmark = [pytest.mark.slow(10), pytest.mark.long]


@pytest.fixture(scope="module")
def quick():
    command = [sys.executable, "-m", "pytest", "-n", "0", "-o", "addopts=", "--collect-only", "-q"]
    result = subprocess.run(
        [*command, "-m", "not slow and not long", "tests/samplers/test_samplers.py", *BAD_INPUT],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return {line for line in result.stdout.splitlines() if "::" in line}


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
        assert f"tests/samplers/test_samplers.py::{test.format(sampler.name)}" in quick


def test_all_bad_input_is_refused(quick):
    assert len([name for name in quick if name.startswith(tuple(BAD_INPUT))]) > 50
    for file in BAD_INPUT:
        assert not re.search(r"mark\.(slow|long)", (ROOT / file).read_text())


def test_what_compiles_long_is_left_out(quick):
    assert not [name for name in quick if name.endswith(("-NUMBA]", "-CVM]"))]
