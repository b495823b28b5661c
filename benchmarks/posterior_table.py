"""Tables with a row for each run on a posterior, which are read again to replace some rows."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PosteriorTable:
    """Columns by name, each with its format; the first is the posterior's name.

    The last column is text that may have blanks, such as a verdict or why there is no result.
    """

    columns: dict[str, str]
    texts: tuple[str, ...]
    """Columns that are no numbers."""

    @property
    def last(self) -> str:
        """Name of the last column."""
        return list(self.columns)[-1]

    @property
    def titles(self) -> str:
        """Heads of the columns."""
        heads = (
            name if name == self.last else format(name, spec.partition(".")[0])
            for name, spec in self.columns.items()
        )
        return " ".join(heads)

    def line(self, row: dict) -> str:
        """A row as text; what is unknown is a dash."""
        cells = []
        for name, spec in self.columns.items():
            value = row.get(name)
            if name == self.last:
                cells.append(" ".join(str(value or "").split())[:200])
            elif value is None or value != value:
                cells.append(f"{'-':>{spec.strip('<>').partition('.')[0]}}")
            else:
                cells.append(format(value, spec))
        return " ".join(cells).rstrip()

    def row(self, line: str) -> dict:
        """A row from its text."""
        cells = line.split(maxsplit=len(self.columns) - 1)
        row: dict = dict(zip(self.columns, cells, strict=False))
        for name in row.keys() - set(self.texts):
            row[name] = None if row[name] == "-" else float(row[name])
        return row

    def read(self, path: Path, posteriors: Collection[str]) -> list[dict]:
        """Rows of these posteriors in a file, none if there is no file."""
        lines = path.read_text().splitlines() if path.exists() else []
        return [self.row(line) for line in lines if line.split(" ")[0] in posteriors]
