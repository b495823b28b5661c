"""Tables with a row for each run on a posterior, which are read again to replace some rows."""

import argparse
import json
import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import pymc as pm


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

    def main(self, about: str, compare: Callable[[str], dict], names: list[str], notes: str):
        """Run the program on the command line: `compare` makes a row, in a process of its own.

        ``about`` is the docstring of the program. The table is in results/, under its name.
        """
        program = Path(sys.argv[0])
        results = program.parent / "results" / f"{program.stem}.txt"
        parser = argparse.ArgumentParser(description=about.partition("\n")[0])
        parser.add_argument("--only", nargs="+", choices=names, default=names)
        parser.add_argument("--out", type=Path, default=results)
        parser.add_argument("--one", choices=names, help=argparse.SUPPRESS)
        args = parser.parse_args()
        if args.one:
            warnings.simplefilter("ignore")
            logging.disable()
            print(json.dumps(compare(args.one), default=float))
            return
        key = next(iter(self.columns))
        for name in args.only:
            command = [sys.executable, str(program), "--one", name]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(name, *done.stderr.strip().splitlines()[-1:])
                continue
            [row] = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
            rows = [r for r in self.read(args.out, names) if r[key] != name] + [row]
            rows.sort(key=lambda r: names.index(r[key]))
            print(self.line(row), flush=True)
            head = f"python benchmarks/{program.name}   ({time.strftime('%Y-%m-%d')}, "
            head += f"pymc {pm.__version__})"
            lines = [head, notes, "", self.titles, *map(self.line, rows)]
            args.out.write_text("\n".join(lines) + "\n")
