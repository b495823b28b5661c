"""The documentation does not rot: its code runs, every public name is in it."""

import inspect
import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import matplotlib as mpl
import pytensor
import pytest

import pymc_sgmcmc as sgm
from pymc_sgmcmc.step import SGMCMCStep

ROOT = Path(__file__).parents[2]


def python_blocks(path):
    """All ```python blocks of a page as one program; lines keep their numbers in the page."""
    text = (ROOT / path).read_text(encoding="utf-8")
    program, end = [], 0
    for block in re.finditer(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        program.append("\n" * text.count("\n", end, block.start(1)) + block[1])
        end = block.end(1)
    return "".join(program)


ON_NUMBA = (
    "README.md",
    "docs/choosing.md",
    "docs/everyday.md",
    "docs/gotchas.md",
    "docs/hierarchies.md",
)
"""The last three have an HSGP, which PyMC evaluates in a way that JAX does not allow, a
`pm.Minibatch` and groups of different sizes, which JAX does not have."""


@pytest.mark.slow(15)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        pytest.param("docs/index.md", marks=pytest.mark.long),
        pytest.param("docs/quickstart.md", marks=pytest.mark.long),
        pytest.param("docs/choosing.md", marks=pytest.mark.long),
        pytest.param("docs/everyday.md", marks=pytest.mark.long),
        pytest.param("docs/hierarchies.md", marks=pytest.mark.long),
        pytest.param("docs/by_hand.md", marks=pytest.mark.long),
        pytest.param("docs/trust.md", marks=pytest.mark.long),
        pytest.param("docs/scaling.md", marks=pytest.mark.long),
        pytest.param("docs/storage.md", marks=pytest.mark.long),
        pytest.param("docs/daily_updating.md", marks=pytest.mark.long),
        pytest.param("docs/gotchas.md", marks=pytest.mark.long),
        pytest.param("docs/simplexes.md", marks=pytest.mark.long),
        pytest.param("docs/streaming.md", marks=pytest.mark.long),
        pytest.param("docs/adding_a_sampler.md", marks=pytest.mark.long),
        pytest.param("docs/evaluation.md", marks=pytest.mark.long),
        pytest.param("docs/networks.md", marks=pytest.mark.long),
        pytest.param("docs/latents.md", marks=pytest.mark.long),
        pytest.param("docs/neural_importance.md", marks=pytest.mark.long),
    ],
)
def test_pages_run(page, tmp_path, monkeypatch):
    """All blocks of a page, in order, in one namespace.

    The first on numba, as its readers would; most others on JAX, which compiles PyMC's functions
    and ours in a third of the time.
    """
    monkeypatch.chdir(tmp_path)
    program = python_blocks(page)
    assert program.strip()
    mode = pytensor.config.mode if page in ON_NUMBA else "JAX"
    with (
        mpl.rc_context({"backend": "agg", "figure.max_open_warning": 0}),
        pytensor.config.change_flags(mode=mode),
    ):
        exec(compile(program, page, "exec"), {"__name__": "page"})
        mpl.pyplot.close("all")


WIDEST_CODE = 100
"""Characters of a line that are seen in a window of 1400 pixels, with both side columns."""


BESIDE_FIT = re.compile(r"with \w+\.backend\.model:(\s+[^\n]*=)?\s+(sgm|pm)\.sample\(")
"""Samples the model inside a Bambi model, whose intercept is another one."""


def test_bambi_models_are_sampled_by_their_fit():
    """Only `fit` gives the intercept with which Bambi predicts."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    for notebook in (ROOT / "docs/gallery").glob("*.ipynb"):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        texts[notebook] = "\n".join("".join(cell["source"]) for cell in cells)
    assert {page.name for page, text in texts.items() if BESIDE_FIT.search(text)} == set()


def test_code_fits_its_column():
    pages = sorted((ROOT / "docs").rglob("*.md"))
    for page in pages:
        lines = python_blocks(page.relative_to(ROOT)).splitlines()
        for number, line in enumerate(lines, start=1):
            assert len(line) <= WIDEST_CODE, f"{page.name}, line {number}"


@pytest.mark.parametrize("name", sgm.__all__)
def test_public_names_are_documented(name):
    """A numpydoc docstring and an entry in the API page; of a sampler equations and a source too.

    All of them can raise: every one has arguments that are checked.
    """
    public = getattr(sgm, name)
    doc = inspect.cleandoc(public.__doc__)
    assert doc.splitlines()[0].endswith(".")
    assert not re.search(r"\{(common|batches|raises|equations)\}", doc), "a placeholder is left"
    sections = dict(
        re.findall(r"^([A-Z][a-z]+)\n-+\n(.*?)(?=^[A-Z][a-z]+\n-+\n|\Z)", doc, re.M | re.S)
    )
    for section in ("Parameters", "Raises", "Examples"):
        assert sections.get(section, "").strip(), section
    assert re.search(r"^[\w.]*Error\b", sections["Raises"], re.MULTILINE)
    assert ">>> " in sections["Examples"]
    is_step = isinstance(public, type) and issubclass(public, SGMCMCStep)
    if is_step:
        assert re.search(r"^    (theta|p|g) .*=", sections["Notes"], re.MULTILINE), "equations"
    if is_step and public is not sgm.Groups:
        assert re.search(r"\b(eq|Algorithm|section) \d", sections["References"])
    pages = {p.stem: p.read_text(encoding="utf-8") for p in (ROOT / "docs/api").glob("*.md")}
    entry = re.compile(rf"^.*auto(class|function):: (pymc_sgmcmc\.)?{name}$", re.MULTILINE)
    assert len([stem for stem, page in pages.items() if entry.search(page)]) == 1
    if is_step:
        assert len(re.findall(r"auto\w+::", pages[name.lower()])) == 1, "a page of its own"


def test_links_between_pages_exist():
    """Relative links and included files lead somewhere; for results the script is enough."""
    for page in [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/api").glob("*.md"),
    ]:
        text = page.read_text(encoding="utf-8")
        targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
        targets += re.findall(
            r"^(?:```|:::)\{(?:literalinclude|include|image|figure)\} (\S+)", text, re.M
        )
        for target in targets:
            path = page.parent / target
            script = path.parent.parent / f"{path.stem}.py"
            made_by_script = path.parent.name == "results" and script.exists()
            assert path.exists() or made_by_script, f"{page.name}: {target}"


def test_files_named_on_the_development_page_exist():
    page = (ROOT / "docs/development.md").read_text(encoding="utf-8")
    package = ROOT / "pymc_sgmcmc"
    folders = [ROOT, ROOT / "docs", package, *(p for p in package.iterdir() if p.is_dir())]
    named = set(re.findall(r"[\w/]+\.(?:py|md|toml)\b", page))
    assert len(named) > 30
    assert {name for name in named if not any((f / name).exists() for f in folders)} == set()


@pytest.mark.long
@pytest.mark.slow(10)
def test_a_sampler_is_one_file(tmp_path):
    """Without its file and its two lines of __init__.py the rest of the package works."""
    package = tmp_path / "pymc_sgmcmc"
    shutil.copytree(ROOT / "pymc_sgmcmc", package, ignore=shutil.ignore_patterns("__pycache__"))
    init = package / "__init__.py"
    for name in ("SGLD", "PSGLD"):
        (package / "samplers" / f"{name.lower()}.py").unlink()
        lines = init.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not re.search(rf"\b{name}\b", line)]
        assert len(lines) - len(kept) == 2
        init.write_text("".join(kept), encoding="utf-8")
    assert "samplers.sgld" not in (ROOT / "pymc_sgmcmc/samplers/psgld.py").read_text()
    assert "samplers.psgld" not in (ROOT / "pymc_sgmcmc/samplers/sgld.py").read_text()
    program = """
        import pymc as pm, pymc_sgmcmc as sgm
        from pymc_sgmcmc.step import SGMCMCStep
        with pm.Model() as model:
            x, pi = pm.Normal("x"), pm.Dirichlet("pi", [1, 1])
            for sampler in (getattr(sgm, name) for name in sgm.__all__):
                step = isinstance(sampler, type) and issubclass(sampler, SGMCMCStep)
                if step and sampler is not sgm.Groups:
                    var = pi if sampler is sgm.SGRLD else x
                    sampler([var], step_size=0.1, compile_kwargs={"mode": "FAST_COMPILE"})
        print(sgm.__file__)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert str(package) in result.stdout, result.stderr


def test_imports_run_one_way():
    """As the page on adding a sampler says: each line of its table imports from those below it."""
    page = (ROOT / "docs" / "adding_a_sampler.md").read_text()
    table = page[page.index("## Where things are") :].splitlines()[6:]
    layers = [re.findall(r"`([a-z_]+)(?:\.py|/)`", line.split("|")[1]) for line in table if line]
    layer = {name: k for k, names in enumerate(layers) for name in names}
    package = ROOT / "pymc_sgmcmc"
    modules = [path for path in package.rglob("*.py") if path != package / "__init__.py"]
    places = [path.relative_to(package).parts[0].removesuffix(".py") for path in modules]
    assert set(places) == set(layer)
    for path, here in zip(modules, places, strict=True):
        for name in re.findall(r"^from pymc_sgmcmc\.([a-z_]+)", path.read_text(), re.MULTILINE):
            assert layer[here] <= layer[name], f"{path} imports pymc_sgmcmc.{name}"


@pytest.mark.long
@pytest.mark.slow(30)
def test_site_builds_without_warnings(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run(
        [*command, str(ROOT / "docs"), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "index.html").exists()
    for page in tmp_path.rglob("*.html"):
        text = re.sub(r"<script.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "$$" not in text, f"{page.name}: a formula that is not one"
        for image in re.findall(r"<img [^>]*>", text):
            alternative = re.search(r'alt="([^"]+)"', image)
            assert alternative, f"{page.name}: {image}"
            assert not alternative[1].endswith(".png"), f"{page.name}: {image} has no :alt:"
    fetched = {*fetched_by(tmp_path)}
    assert {str(path) for path in fetched if not path.is_file()} == set()
    assert any(path.match("mathjax/tex-*.js") for path in fetched), "nothing sets formulas"


FETCHED = {
    "html": r'<(?:script|img|iframe)\b[^>]* src="([^"]+)"'
    r'|<link\b(?=[^>]* rel="(?:stylesheet|icon|preload)")[^>]* href="([^"]+)"',
    "css": r"url\(['\"]?([^)'\"]+)",
}
"""What a browser fetches without being asked, by the kind of the file that names it."""


def fetched_by(site):
    """Where the files that a site fetches are on disk, if they belong to it."""
    for kind, pattern in FETCHED.items():
        for path in site.rglob(f"*.{kind}"):
            if path.name == "webpack-macros.html":  # a template of the theme
                continue
            found = re.findall(pattern, path.read_text(encoding="utf-8"))
            for target in {re.split("[?#]", "".join(groups))[0] for groups in found}:
                if target and not target.startswith("data:"):
                    yield path.parent / target


@pytest.mark.parametrize("folder", ["examples", "benchmarks"])
def test_every_script_is_listed(folder):
    listed = (ROOT / folder / "README.md").read_text()
    shared = {"common", "datasets", "networks", "a9a_nuts"} if folder == "examples" else set()
    scripts = {path.stem for path in (ROOT / folder).glob("*.py")} - shared
    assert {name for name in scripts if f"`{name}.py`" not in listed} == set()
