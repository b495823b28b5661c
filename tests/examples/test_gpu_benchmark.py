"""The benchmark for GPUs: at a tiny size on whatever device there is, and when cases go wrong."""

import importlib.util
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu

CHEAP = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""Less work for XLA: these times mean nothing."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpu") / "table.txt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", f"{os.environ.get('XLA_FLAGS', '')} {CHEAP}".strip())
        return gpu.measure(True, path, 1000, sys.executable), path.read_text()


@pytest.mark.long
@pytest.mark.slow(50)
def test_every_case_has_its_row(measured):
    table, text = measured
    missing = {case.label: case.reason for case in table.cases if case.row is None}
    if importlib.util.find_spec("posteriors") is None:  # told, not passed over
        for case in (case for case in table.cases if case.section == "posteriors"):
            assert missing.pop(case.label).startswith("not installed here: No module named")
    assert missing == {}
    assert {case.section for case in table.cases} == set(gpu.SECTIONS)
    for title in gpu.SECTIONS.values():
        assert f"\n{title}\n" in text
    for case in table.cases:
        assert f"  {case.label}" in text or case.section == "device"
    assert text == "\n".join(table.lines()) + "\n"
    assert not gpu.RESULTS.exists() or " cpu" not in gpu.RESULTS.read_text().splitlines()[1]


@pytest.mark.long
@pytest.mark.slow(50)
def test_numbers_are_positive_and_ratios_are_those_of_times(measured):
    table, _ = measured
    n_ratios = 0
    for case in table.cases:
        row = case.row or {}
        numbers = [v for v in row.values() if isinstance(v, float)]
        assert np.isfinite(numbers).all(), case.label
        assert (np.array(numbers) > 0).all(), case.label
        if "us per update" in row and case.section != "posteriors":
            assert row["ratio"] == pytest.approx(row["by hand, us"] / row["us per update"])
            n_ratios += 1
    assert n_ratios == 6
    shown = {case.section: table.complete_row(case) for case in table.cases if case.row}
    rows = {case.section: case.row for case in table.cases if case.row}
    base = next(case.row for case in table.cases if case.section == "speed")
    for section in ("precision", "unroll"):
        faster = base["us per update"] / rows[section]["us per update"]
        assert shown[section]["ours, x default"] == pytest.approx(faster)
        assert shown[section]["by hand, x default"] > 0
    # 2 chains, 800 updates of which about 20 make an independent draw, 16 elements: sd 0.02
    assert 0.9 < rows["bias"]["sd ratio"] < 1.1
    for limit in ("memory, % of copy", "arithmetic, % of matmul", "compile s, PyTensor", "XLA"):
        assert rows["speed"][limit] > 0


def pretend(path, *lines):
    """An interpreter that answers so, whatever it is to run."""
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return str(path)


ROW = """echo '{"case": 0, "row": {"us per update": 2.5, "by hand, us": 5.0}}'"""


def three(python, path):
    cases = [gpu.Case("speed", name, {}) for name in "abc"]
    return gpu.Table([gpu.Job(cases, python=python)], "command", path)


def reasons(table):
    return [case.reason for case in table.cases]


def test_a_case_that_ends_its_process_leaves_the_others(tmp_path):
    python = pretend(tmp_path / "python", ROW, "echo out of memory >&2", "exit 3")
    table = three(python, tmp_path / "table")
    gpu.run(table.jobs[0], table, time.perf_counter() + 60, tiny=True)
    assert reasons(table) == ["", "failed: the process ended with 3: out of memory", ""]
    assert "  b: failed: the process ended with 3: out of memory" in table.path.read_text()


def test_a_case_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "LONGEST", 0.5)
    python = pretend(tmp_path / "python", ROW, "exec sleep 100")
    table = three(python, tmp_path / "table")
    gpu.run(table.jobs[0], table, time.perf_counter() + 60, tiny=True)
    assert reasons(table) == ["", "failed: took more than 0 s", ""]


def test_what_the_budget_leaves_out_is_told_and_rows_are_kept(tmp_path):
    python = pretend(tmp_path / "python", ROW, "exec sleep 100")
    table = three(python, tmp_path / "table")
    began = time.perf_counter()
    gpu.run(table.jobs[0], table, began + 1, tiny=True)
    assert time.perf_counter() - began < 30
    assert reasons(table) == ["", *["left out: no time was left"] * 2]
    text = table.path.read_text()
    assert "2.5" in text
    assert "  c: left out: no time was left" in text


def test_a_failure_is_told_with_its_cause(tmp_path):
    answer = """echo '{"case": 0, "failed": "ValueError: too large"}'"""
    table = three(pretend(tmp_path / "python", answer, answer, answer), tmp_path / "table")
    gpu.run(table.jobs[0], table, time.perf_counter() + 60, tiny=True)
    assert reasons(table) == ["failed: ValueError: too large"] * 3


def test_the_full_plan_has_every_chain_count_and_flag():
    cases = [case for job in gpu.plan(False, "python") for case in job.cases]
    chains = {}
    for case in cases:
        if case.options["function"] == "speed" and case.section == "speed":
            chains.setdefault(case.options["model"], set()).add(case.options["chains"])
    assert chains == {"mlp": {1, 4, 16, 64}, "mlp-1200": {1, 4, 16, 64}, "blr": {1, 64, 1024}}
    labels = {case.label for case in cases if case.section == "speed"}
    assert {case.base for case in cases if case.base} <= labels
    assert {case.section for case in cases} == set(gpu.SECTIONS)
    assert gpu.BUDGET < 9 * 60


def test_only_some_cases_in_the_order_asked_for_with_their_flags():
    parts = ["whole", "unroll: logistic", "unroll", "loops in them too"]
    jobs = gpu.only(gpu.plan(False, "python"), parts)
    assert [[case.section for case in job.cases] for job in jobs] == [
        ["whole"] * 4,
        ["unroll"] * 2,
        ["unroll"] * 2,
        ["buffers"] * 3,
    ]
    assert all(case.label.startswith("logistic") for case in jobs[1].cases)
    assert [job.flags for job in jobs] == ["", "", "", gpu.WHILE]
    lines = gpu.Table(jobs, "command").lines()
    assert {title for title in gpu.SECTIONS.values() if title in lines} == {
        gpu.SECTIONS[section] for section in ("whole", "unroll", "buffers")
    }


def test_some_cases_do_not_replace_the_table_of_all(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only", "device"])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "--only needs --out" in capsys.readouterr().err
