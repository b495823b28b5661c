"""Execute the notebooks of the gallery and cut their thumbnails.

    python docs/scripts/make_gallery.py                   # all of docs/gallery: half an hour
    python docs/scripts/make_gallery.py bambi_model       # some, by name
    python docs/scripts/make_gallery.py --thumbnails      # executes nothing

Each notebook is run from top to bottom in its own folder and written back with its outputs, without
times. The last picture of the cell that is tagged "thumbnail" becomes
docs/gallery/thumbnails/<name>.png. If a cell fails, the notebook stays as it was.
"""

import argparse
import base64
import io
import os
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

GALLERY = Path(__file__).resolve().parent.parent / "gallery"
TAG = "thumbnail"
KEPT = ("tags", "mystnb")
"""Of a cell's metadata; the second has the text that stands for a picture."""
WIDTH, HEIGHT = 720, 450
SECONDS_PER_CELL = 900
NO_WIDGETS = 'ignore:install "ipywidgets" for Jupyter support:UserWarning'
"""A progress bar that has vanished when the cell is through needs none."""


def execute(path: Path) -> nbformat.NotebookNode:
    """Run a notebook and return it with outputs that do not depend on when it was run."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,
    )
    client.execute()
    tidy(notebook)
    return notebook


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Keep of the metadata what a reader's editor needs, so that a rerun changes only results."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {key: cell.metadata[key] for key in KEPT if key in cell.metadata}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_blank(output)]


def is_blank(output: nbformat.NotebookNode) -> bool:
    """Whether a bar has left nothing behind it."""
    shown = output.get("data", {})
    return set(shown) <= {"text/plain", "text/html"} and shown.get("text/plain") == ""


def tagged_picture(notebook: nbformat.NotebookNode) -> bytes:
    """Return the last PNG among the outputs of the tagged cell."""
    cells = [cell for cell in notebook.cells if TAG in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise ValueError(f'{len(cells)} cells have the tag "{TAG}": it must be one.')
    pictures = [o.data["image/png"] for o in cells[0].outputs if "image/png" in o.get("data", {})]
    if not pictures:
        raise ValueError(f'The cell with the tag "{TAG}" shows no picture.')
    return base64.b64decode(pictures[-1])


def write_thumbnail(picture: bytes, path: Path) -> None:
    """Fit a picture into the cards' shape, on white."""
    image = Image.open(io.BytesIO(picture)).convert("RGBA")
    scale = min(WIDTH / image.width, HEIGHT / image.height)
    size = (round(image.width * scale), round(image.height * scale))
    image = image.resize(size, Image.Resampling.LANCZOS)
    card = Image.new("RGBA", (WIDTH, HEIGHT), "white")
    card.alpha_composite(image, ((WIDTH - size[0]) // 2, (HEIGHT - size[1]) // 2))
    path.parent.mkdir(exist_ok=True)
    # A palette keeps the files small; the pictures have few colours.
    card.convert("RGB").quantize(128).save(path, optimize=True)


def main() -> None:
    """Make the notebooks named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = sorted(path.stem for path in GALLERY.glob("*.ipynb"))
    parser.add_argument("names", nargs="*", help="; ".join(names))
    parser.add_argument("--thumbnails", action="store_true", help="from the outputs as they are")
    args = parser.parse_args()
    os.environ["PYTHONWARNINGS"] = NO_WIDGETS
    for name in args.names or names:
        path = GALLERY / f"{Path(name).stem}.ipynb"
        began = time.perf_counter()
        notebook = nbformat.read(path, as_version=4) if args.thumbnails else execute(path)
        write_thumbnail(tagged_picture(notebook), GALLERY / "thumbnails" / f"{path.stem}.png")
        if not args.thumbnails:
            nbformat.write(notebook, path)
        print(f"{path.stem}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
