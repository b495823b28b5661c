"""PyMC's progress bars, fed with blocks of draws.

PyMC's own manager takes one draw at a time, so this subclass calls its bars directly.
"""

from typing import Any

import numpy as np
from pymc.progress_bar import MCMCProgressBarManager, default_progress_theme

from pymc_sgmcmc.run.run_events import Block, Resumed

MAX_BARS = 16
"""Number of chains above which they share one bar."""


class Progress(MCMCProgressBarManager):
    """Bars of all chains with rate, step size and temperature; red for a failed chain."""

    def __init__(self, step, chains, draws, tune, progressbar: Any = True, theme: Any = None):
        if progressbar is True and chains > MAX_BARS:
            progressbar = "combined+stats"
        theme = default_progress_theme if theme is None else theme
        super().__init__(step, chains, draws, tune, progressbar, theme)
        self._per_chain, self._tune = draws + tune, tune
        self._done = np.zeros(chains, dtype=int)

    def resumed(self, event: Resumed) -> None:
        """Show the draws that chains have made in an earlier session."""
        self._done[event.chains.start : event.chains.stop] = event.n_draws
        for chain in event.chains if self._show_progress else ():
            self._update(chain, event.n_draws, total=self.total_draws)

    def block(self, block: Block) -> None:
        """Show a block's last draw."""
        for k, chain in enumerate(block.chains):
            if n := block.count(k):
                self._done[chain] = block.first + n
                if self._show_progress:
                    self._show(chain, n, block, k)

    def _show(self, chain: int, advance: int, block: Block, k: int) -> None:
        last = [{name: values[k, advance - 1] for name, values in s.items()} for s in block.stats]
        failing, shown = self._extract_stats(last)
        if self.combined_progress:
            count, total = int(self._done.sum()), self._per_chain * len(self._done)
        else:
            count, total = int(self._done[chain]), self._per_chain
        shown["draw"] = count if count <= self._tune_total else count - self._tune_total
        self._update(chain, advance, failing, shown, count >= total, total)

    def expect(self, draws: int) -> None:
        """Make room for more draws of each chain than were expected."""
        self._per_chain = max(self._per_chain, draws + self._tune)

    def kept(self, draws: int) -> None:
        """End the bars at the draws of each chain that are kept; some chains have made more."""
        per_bar = len(self._done) if self.combined_progress else 1
        for bar in range(len(self._done) // per_bar) if self._show_progress else ():
            self._backend.update(
                task_id=bar,
                advance=0,
                failing=False,
                stats={"draw": draws * per_bar},
                is_last=True,
                total=(draws + self._tune) * per_bar,
            )

    def failed(self, chain: int) -> None:
        """Turn a chain's bar red."""
        if self._show_progress:
            self._update(chain, failing=True)

    def _update(self, chain, advance=0, failing=False, stats=None, is_last=False, total=None):
        self._backend.update(
            task_id=0 if self.combined_progress else chain,
            advance=advance,
            failing=failing,
            stats=stats or {},
            is_last=is_last,
            total=total,
        )
