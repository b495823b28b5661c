"""The site's tables say what the benchmarks' files say."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "docs" / "_ext" / "results_tables.py"


@pytest.fixture(scope="module")
def tables():
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("results_tables", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SPEED = """python benchmarks/speed.py

blr, float32, numba, thin=50: us per draw of 50 updates
  bare compiled loop         551.0     1.00x

mlp, float64: us per update, and updates per second relative to hand-jax
  hand-jax                13706.57     1.00x
  blackjax                11267.92     1.22x
  pymc_sgmcmc-numba           9.44     1.46x
  pymc_sgmcmc-jax         12350.68     1.11x
  posteriors              25227.58     0.54x
"""
ACCURACY = """runs with every mean within 0.1 sd and every sd within 10%:
  default         1 of 2

scale, over the seeds:
  groups-rasch default         10 seeds: -0.007 +- 0.010, largest -0.09

posterior           sampler          seed     N   d batch  error sd_min sd_max    ess   rhat  said
diamonds-diamonds   default             1  5000  26    64  0.052  0.964  1.017    847  1.009  ok
pima                nutpie              1   768   9        0.039  0.956  1.007    966  1.009
a9a                 default             1 32561 124   256  0.078  0.907  1.088    827  1.008  ok
a9a                 default             2 32561 124   256  0.061  0.887  1.063    827  1.008  ok
"""


def test_speed_has_a_row_for_each_model_and_a_column_for_each_program(tables):
    head, *rows = tables.speed(SPEED)
    assert len(head) == 6
    assert rows == [
        ["network 784-400-400-10, float64", "13,707", "11,268", "25,228", "12,351", "9.4"]
    ]


def test_accuracy_has_the_worst_seeds_of_the_default_call(tables):
    _, *rows = tables.accuracy(ACCURACY)
    assert rows == [
        ["diamonds", "5,000", "26", "1", "0.052", "0.964", "1.017"],
        ["a9a", "32,561", "124", "2", "0.078", "0.887", "1.088"],
    ]


@pytest.mark.parametrize("name", ["speed", "accuracy"])
def test_a_file_without_the_table_is_an_error(tables, name):
    with pytest.raises(ValueError, match="has no"):
        getattr(tables, name)("python benchmarks/speed.py\n")


@pytest.mark.parametrize("name", ["speed", "accuracy"])
def test_the_committed_files_can_be_read(tables, name):
    read, file = tables.TABLES[name]
    head, *rows = read((tables.RESULTS / file).read_text(encoding="utf-8"))
    assert rows
    assert {len(row) for row in rows} == {len(head)}
