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
    """Errors of the default call on each posterior, in default_call.txt."""
    rows = [["posterior", "rows", "parameters", "error of a mean", "smallest sd", "largest sd"]]
    for line in text.splitlines():
        name, *cells = line.split()[:9] or [""]
        if len(cells) == 8 and cells[0] == "default":
            _, _, n, d, _, error, low, high = cells
            # A posterior of posteriordb is called data-model, often with the data's name in both.
            rows.append([name.partition("-")[2] or name, n, d, error, low, high])
    if len(rows) == 1:
        raise ValueError("default_call.txt has no rows of the default call.")
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
