"""Tables of the site that are read from the benchmarks' own text files when it is built.

    ```{results-table} speed
    ```

So no page repeats a number by hand, and a benchmark that is run again changes the page.
"""

import re
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
MODELS = {
    "blr": "logistic regression, 32561 rows x 123",
    "mlp": "network 784-400-400-10",
}
PROGRAMS = {
    "hand-jax": "hand-written JAX",
    "blackjax": "BlackJAX",
    "posteriors": "posteriors (PyTorch)",
    "pymc_sgmcmc-jax": "here, JAX",
    "pymc_sgmcmc-numba": "here, numba",
}
Rows = list[list[str]]


def speed(text: str) -> Rows:
    """Microseconds per update of each program on each model, in speed.txt."""
    found = {}
    for block in re.split(r"\n\n", text):
        title, *lines = block.splitlines()
        if match := re.match(r"(\w+), (float\d\d): us per update, and", title):
            times = {line.split()[0]: float(line.split()[1]) for line in lines}
            found[match[1], match[2]] = times
    rows = [["microseconds per update", *PROGRAMS.values()]]
    for (model, precision), times in found.items():
        cells = [f"{times[p]:,.{1 if times[p] < 100 else 0}f}" for p in PROGRAMS]
        rows.append([f"{MODELS[model]}, {precision}", *cells])
    if len(rows) == 1:
        raise ValueError("speed.txt has no table of microseconds per update.")
    return rows


def accuracy(text: str) -> Rows:
    """Worst errors over the seeds of the default call on each posterior, in default_call.txt."""
    number = r" +([\d.]+)"
    row = re.compile(rf"(\S+) +default +\d+{number}{number} +\d+{number * 3} ", re.MULTILINE)
    runs: dict[tuple[str, str, str], list[list[float]]] = {}
    for name, n, d, *errors in row.findall(text):
        # A posterior of posteriordb is called data-model, often with the data's name in both.
        of = name.partition("-")[2] or name, n, d
        runs.setdefault(of, []).append([float(error) for error in errors])
    if not runs:
        raise ValueError("default_call.txt has no rows of the default call.")
    rows = [
        ["posterior", "rows", "parameters", "seeds", "error of a mean", "smallest sd", "largest sd"]
    ]
    for (name, n, d), errors in runs.items():
        means, smallest, largest = zip(*errors, strict=True)
        worst = f"{max(means):.3f}", f"{min(smallest):.3f}", f"{max(largest):.3f}"
        rows.append([name, f"{int(n):,}", f"{int(d):,}", str(len(errors)), *worst])
    return rows


TABLES = {"speed": (speed, "speed.txt"), "accuracy": (accuracy, "default_call.txt")}


def markdown(rows: Rows) -> list[str]:
    """A table with numbers on the right."""
    head, *body = rows
    line = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (head, line, *body)]


class ResultsTable(SphinxDirective):
    """The directive."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the table as if it stood in the page."""
        read, name = TABLES[self.arguments[0]]
        self.env.note_dependency(str(RESULTS / name))
        lines = markdown(read((RESULTS / name).read_text(encoding="utf-8")))
        node = nodes.container(classes=["results-table"])
        self.state.nested_parse(StringList(lines, name), 0, node)
        return [node]


def setup(app: Sphinx) -> dict:
    """Register the directive."""
    app.add_directive("results-table", ResultsTable)
    return {"parallel_read_safe": True}
