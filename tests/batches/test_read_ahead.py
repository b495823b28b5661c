"""What is read ahead is waited for where the process ends, but not for ever."""

import subprocess
import sys
import time

import pytest

SCRIPT = """
import time
from pymc_sgmcmc.batches import read_ahead

read_ahead.LONGEST_WAIT_AT_EXIT = {longest}

def read():
    time.sleep({seconds})
    print("read", flush=True)

thread = read_ahead.ReadAhead(read)
print("end", flush=True)
"""


@pytest.mark.parametrize(
    ("seconds", "longest", "printed"),
    [(1.0, 60.0, ["end", "read"]), (600.0, 0.5, ["end"])],
    ids=["soon", "never"],
)
def test_a_process_ends_after_its_readers(seconds, longest, printed):
    """Otherwise Python ends a thread in C++ code, where numba and XLA abort the process."""
    script = SCRIPT.format(seconds=seconds, longest=longest)
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == printed
    assert time.monotonic() - began < 300
