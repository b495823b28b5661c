"""Which parts of the package may know which, read from their import statements.

Imports inside functions and under TYPE_CHECKING count as well: what is named is known.
"""

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import pymc_sgmcmc

PACKAGE = Path(pymc_sgmcmc.__file__).parent
TESTS = Path(__file__).parents[1]
LINES = """
instead_of_nuts
sampling pymc_sampler_interface
run_chains
diagnosis
storage
exact
run
predictions
samplers
step docstrings variables
step_kernel
adaptation
chain compiled_call_length
kernel
loop
group_records
evaluation layers
latents.gibbs latents.importance
integration
latents
gradients
batches
noise local_slots
algorithm schedules backends pymc_internals
number_checks internals_used temporary_folder
file_lock
"""
"""The way of the data, downwards: a part knows those of lower lines, and of its own only these."""
WITHIN_A_LINE = {("step", "docstrings"), ("step", "variables"), ("chain", "compiled_call_length")}
SAMPLERS_KNOW = {
    *("step", "docstrings", "variables", "algorithm", "schedules", "noise", "backends"),
    "number_checks",
}
"""Neither the model nor the data, though both lie below them."""
EXCEPTIONS = {
    # The numbers in a Dirichlet prior are expressions, to be evaluated.
    ("pymc_sgmcmc.samplers.sgrld", "pymc_sgmcmc.gradients.arrays"),
}
STRANGERS = {
    "batches": {"pymc", "pytensor", "jax", "arviz"},
    "schedules": {"pymc", "pytensor", "jax", "numba", "arviz"},
    "samplers": {"jax", "numba"},
    "gradients": {"jax", "numba"},
    "latents": {"jax", "numba"},
}
"""Libraries not to be known: batches and schedules know no model, equations no backend."""
LEVEL = {part: k for k, line in enumerate(LINES.split("\n")) for part in line.split()}


def imports(code: str) -> set[str]:
    """Full names of all that is imported; ``from a import b`` is ``a.b``."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


IMPORTS = {module_name(path): imports(path.read_text()) for path in PACKAGE.rglob("*.py")}
MODULES = {name: found for name, found in IMPORTS.items() if name != "pymc_sgmcmc"}
"""All but the front, which names what is public."""


def module_of(name: str) -> str:
    """The module that an imported name is, or is taken from."""
    while name not in IMPORTS:
        name = name.rpartition(".")[0]
    return name


def part_of(module: str) -> str:
    """The part on a line that a module belongs to: the longest that fits."""
    path = module.removeprefix("pymc_sgmcmc.").split(".")
    fits = (".".join(path[:k]) for k in range(len(path), 0, -1))
    part = next((part for part in fits if part in LEVEL), None)
    assert part, f"{module} is on no line: give it a place in LINES"
    return part


ARROWS = sorted(
    (module, module_of(name))
    for module, names in MODULES.items()
    for name in names
    if name.split(".")[0] == "pymc_sgmcmc"
)


def allowed(module: str, other: str) -> bool:
    if (module, other) in EXCEPTIONS:
        return True
    if other == "pymc_sgmcmc":
        return False
    one, two = part_of(module), part_of(other)
    if one == two or (one, two) in WITHIN_A_LINE:
        return True
    if one == "samplers":
        return two in SAMPLERS_KNOW
    return LEVEL[one] < LEVEL[two]


def test_parts_know_only_those_below_them():
    assert len(ARROWS) > 100  # they are found
    assert [f"{a} -> {b}" for a, b in ARROWS if not allowed(a, b)] == []


def test_every_exception_is_needed():
    assert set(ARROWS) >= EXCEPTIONS
    pairs = {(part_of(a), part_of(b)) for a, b in ARROWS}
    assert pairs >= WITHIN_A_LINE


def test_there_is_no_circle():
    graph: dict[str, set[str]] = {}
    for module, other in ARROWS:
        graph.setdefault(module, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("part", STRANGERS)
def test_parts_do_not_know_libraries_of_others(part):
    of_part = {m: names for m, names in MODULES.items() if part_of(m).split(".")[0] == part}
    assert of_part
    known = {
        f"{module} -> {name}"
        for module, names in of_part.items()
        for name in names
        if name.split(".")[0] in STRANGERS[part]
    }
    assert known == set()


def test_private_names_stay_at_home():
    """Of other modules of the package, and of PyMC and PyTensor but for one module."""
    private = {
        f"{module} -> {name}"
        for module, names in IMPORTS.items()
        for name in names
        if any(p.startswith("_") and not p.startswith("__") for p in name.split("."))
        and not (module == "pymc_sgmcmc.pymc_internals" or part_of(module) == "backends")
    }
    assert private == set()


def test_each_file_of_tests_runs_alone():
    """pytest puts `tests` and a test file's own folder on the path, not the folders of others."""
    files = sorted(TESTS.rglob("*.py"))
    folders = defaultdict(set)
    for file in files:
        folders[file.stem].add(file.parent)
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("test_"):
                assert folders[node.module] & {TESTS, file.parent}, f"{file} imports {node.module}"
