"""The notebooks of the gallery are shown as they were run; `make gallery` runs them again."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "gallery").glob("*.ipynb"))
PATH_OF_A_MACHINE = re.compile(r"(?<![\w.])/(home|Users|root|tmp|work|usr|opt|var)/|\b[A-Z]:\\")
MEGABYTE = 2**20


def cells_of(path, kind="code"):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def source_of(cell):
    return "".join(cell["source"])


def shown_text(cell):
    """What a cell's outputs say in words."""
    for output in cell["outputs"]:
        yield "".join(output.get("text", ""))
        for kind, value in output.get("data", {}).items():
            if kind.startswith("text/"):
                yield "".join(value)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_was_executed_from_top_to_bottom(self, path):
        counts = [cell["execution_count"] for cell in cells_of(path)]
        assert counts == list(range(1, len(counts) + 1))

    def test_shows_no_error(self, path):
        kinds = {output["output_type"] for cell in cells_of(path) for output in cell["outputs"]}
        assert "error" not in kinds

    def test_shows_no_path_of_a_machine(self, path):
        for cell in cells_of(path):
            for text in (source_of(cell), *shown_text(cell)):
                assert not PATH_OF_A_MACHINE.search(text), text

    def test_says_first_what_it_is_about(self, path):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        first = notebook["cells"][0]
        assert first["cell_type"] == "markdown"
        title, _, problem = source_of(first).partition("\n")
        assert title.startswith("# ")
        assert len(problem.split()) > 20

    def test_can_be_repeated(self, path):
        assert "random_seed=" in "\n".join(map(source_of, cells_of(path)))

    def test_intervals_have_a_labelled_axis(self, path):
        """ArviZ leaves it to us to say what the numbers are."""
        for source in map(source_of, cells_of(path)):
            assert ".set_xlabel(" in source or "plot_forest(" not in source, source

    def test_one_cell_gives_the_thumbnail(self, path):
        tagged = [c for c in cells_of(path) if "thumbnail" in c["metadata"].get("tags", [])]
        assert len(tagged) == 1
        assert any("image/png" in output.get("data", {}) for output in tagged[0]["outputs"])
        assert (DOCS / "gallery" / "thumbnails" / f"{path.stem}.png").is_file()

    def test_has_a_card_and_a_place_in_the_contents(self, path):
        page = (DOCS / "gallery.md").read_text(encoding="utf-8")
        assert f":link: gallery/{path.stem}\n" in page
        assert f":img-top: gallery/thumbnails/{path.stem}.png\n" in page
        assert re.search(rf"^(.* <)?gallery/{path.stem}>?$", page, re.MULTILINE)

    def test_is_small(self, path):
        assert path.stat().st_size < 1.5 * MEGABYTE


def test_every_card_has_its_notebook():
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    cards = re.findall(r"^:link: gallery/(\w+)$", page, re.MULTILINE)
    assert sorted(cards) == [path.stem for path in NOTEBOOKS]


def test_every_thumbnail_has_its_notebook():
    pictures = {path.stem for path in (DOCS / "gallery" / "thumbnails").glob("*.png")}
    assert pictures == {path.stem for path in NOTEBOOKS}


def test_predictions_of_the_bambi_notebook():
    """200 draws, nearly independent: the mean predicted share within 4 of its standard errors."""
    (path,) = (path for path in NOTEBOOKS if path.stem == "bambi_model")
    shown = "\n".join(text for cell in cells_of(path) for text in shown_text(cell))
    observed = float(re.search(r"observed share of high incomes: ([\d.]+)", shown)[1])
    found = re.search(r"mean predicted probability: +([\d.]+) \(sd over draws ([\d.]+)\)", shown)
    predicted, sd = float(found[1]), float(found[2])
    assert sd < 0.01
    assert abs(predicted - observed) < 0.3 * sd
