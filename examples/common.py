"""What the example scripts share: arguments, tables, figures, autocorrelation times."""

import argparse
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).resolve().parent / "results"
E, S, GREY = "tab:orange", "tab:blue", "0.6"


def arguments(description: str, **options: tuple) -> argparse.Namespace:
    """Parse options given as ``name=(default, help)``, with ``--quick`` and ``--seed``."""
    parser = argparse.ArgumentParser(description=description)
    for name, (default, text) in options.items():
        flag = "--" + name.replace("_", "-")
        if default is False:
            parser.add_argument(flag, action="store_true", help=text)
        else:
            text = f"{text} (default: %(default)s)"
            parser.add_argument(flag, type=type(default), default=default, help=text)
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="seconds: to try it out, not to quote")
    return parser.parse_args()


class Report:
    """Prints lines and writes them to results/<name>.txt; a quick run writes to results/quick."""

    def __init__(self, name: str, quick: bool, script: str | None = None):
        self.folder = RESULTS / "quick" if quick else RESULTS
        self.folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.began = time.perf_counter()
        command = shlex.join(["python", f"examples/{script or name}.py", *sys.argv[1:]])
        packages = ("pymc-sgmcmc", "pymc", "pytensor", "numba", "numpy")
        self.lines = [
            f"$ {command}",
            f"Python {platform.python_version()}, "
            + ", ".join(f"{package} {version(package)}" for package in packages),
            "",
        ]
        print("\n".join(self.lines))

    def print(self, text: str = "") -> None:
        """Add lines."""
        print(text, flush=True)
        self.lines.append(text)

    def table(self, header: Sequence[str], rows: Sequence[Sequence]) -> None:
        """Add a table with aligned columns."""
        cells = [list(map(str, row)) for row in [header, *rows]]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        cells.insert(1, ["-" * width for width in widths])
        for row in cells:
            first, *rest = row
            aligned = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
            self.print(" | ".join([first.ljust(widths[0]), *aligned]))

    def save(self, figure=None) -> None:
        """Write the text, and the figure beside it."""
        self.print(f"\nRun time {time.perf_counter() - self.began:.0f} s.")
        (self.folder / f"{self.name}.txt").write_text("\n".join(self.lines) + "\n")
        if figure is not None:
            figure.savefig(self.folder / f"{self.name}.png", dpi=130)


def plain_log(axis) -> None:
    """Make the y axis logarithmic, with numbers such as 2 and 0.5 at its ticks."""
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}")


def percent(x: float) -> str:
    """0.8495 as 84.95%."""
    return f"{100 * x:.2f}%"


def autocovariance(x: np.ndarray) -> np.ndarray:
    """Autocovariance of a series at lags 0, 1, ... by FFT."""
    x = np.asarray(x, dtype=float) - np.mean(x)
    n = len(x)
    transform = np.fft.rfft(x, 1 << (2 * n - 1).bit_length())
    return np.fft.irfft(transform * transform.conj())[:n] / n


def autocorrelation_time(x: np.ndarray) -> float:
    """Integrated autocorrelation time 1/2 + sum of the autocorrelations, in samples.

    The sum stops at the first lag that exceeds ten times the time so far (Sokal's window).
    """
    covariance = autocovariance(x)
    if not covariance[0] > 0:
        return float("nan")
    time_so_far = 0.5 + np.cumsum(covariance[1:] / covariance[0])
    lags = np.arange(1, len(time_so_far) + 1)
    enough = np.flatnonzero(lags >= 10 * time_so_far)
    return float(time_so_far[enough[0] if len(enough) else -1])


def with_step_size(step, value) -> None:
    """Give a compiled step another step size."""
    from pymc_sgmcmc.schedules import as_schedule

    step.schedule = as_schedule(value)


def chain(step, seed: int, n_draws: int, start: dict, burn_in: int = 0) -> tuple[dict, dict]:
    """Draws and statistics of one chain of a compiled step, as arrays by name.

    The step is driven without `pm.sample`, so that one compilation serves many settings.
    """
    step.setup_chain(np.random.default_rng(seed), tune=0, draws=n_draws)
    point, draws, stats = start, {name: [] for name in start}, []
    for k in range(burn_in + n_draws):
        point, [stat] = step.step(point)
        if k >= burn_in:
            for name, value in point.items():
                draws[name].append(value)
            stats.append(stat)
    names = [n for n in stats[0] if n != "warning"]
    return (
        {name: np.array(values) for name, values in draws.items()},
        {name: np.array([stat[name] for stat in stats]) for name in names},
    )


def updates_autocorrelation(step, seed: int, x: np.ndarray, observable: Callable, start: dict):
    """Autocorrelation time in UPDATES of a recorded series ``x``.

    Where it is too short for the chain's thinning, a second chain of 50000 unthinned updates
    measures ``observable(draws)``.
    """
    thin = step.thin
    in_updates = thin * autocorrelation_time(x)
    if thin == 1 or in_updates > 20 * thin:
        return in_updates
    step.thin = 1
    try:
        draws, _ = chain(step, seed + 1000, min(50_000, thin * len(x)), start, burn_in=1000)
    finally:
        step.thin = thin
    return autocorrelation_time(observable(draws))


def progress(items: Sequence) -> Iterator:
    """Iterate, printing a line for each item with the time it took."""
    for k, item in enumerate(items, 1):
        began = time.perf_counter()
        yield item
        took = time.perf_counter() - began
        print(f"  [{k}/{len(items)}] {item}: {took:.1f} s", flush=True)
