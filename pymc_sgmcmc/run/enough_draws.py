"""Stop a run once its effective sample size is what was asked for.

It is looked at whenever all chains have so many draws, never by time, so that a seed gives the same
draws each time.
"""

import logging

import numpy as np

from pymc_sgmcmc.run.convergence import Convergence, convergence
from pymc_sgmcmc.run.result import InMemoryDraws
from pymc_sgmcmc.run.run import Run

_log = logging.getLogger("pymc.sgmcmc")

FEWEST = 500
"""Draws of each chain at which the effective sample size is looked at first,"""
MOST = 10_000
"""... and last;"""
GROWTH = 1.5
"""... each time by this factor more."""
LARGEST_RHAT = 1.01


class EnoughDraws:
    """Whether the draws in memory are enough.

    Parameters
    ----------
    run : Run
        Its ``draws`` are the most that are made.
    in_memory : InMemoryDraws
    ess : float
        Effective sample size of all chains together that each element's mean should have.
    """

    def __init__(self, run: Run, in_memory: InMemoryDraws, ess: float):
        self.in_memory = in_memory
        self.ess = ess
        free = {rv.name for rv in run.model.free_RVs}
        self.names = [v for v in in_memory.traces[0].samples if v in free]
        self.most = run.draws
        self.look_at = min(FEWEST, run.draws)

    def reached(self) -> bool:
        """Look, if it is time; if there are enough, cut all chains to the same length."""
        n_warmup, traces = self.in_memory.n_warmup, self.in_memory.traces
        while all(len(trace) - n_warmup >= self.look_at for trace in traces):
            ess, rhat, by_chance = self._look()
            enough = ess >= self.ess and not rhat > max(LARGEST_RHAT, by_chance)
            if enough or self.look_at == self.most:
                for trace in traces:
                    trace.draw_idx = n_warmup + self.look_at
                if not enough:
                    found = "unknown" if np.isnan(ess) else f"{ess:.0f}"
                    _log.warning(
                        f"After {self.look_at} draws per chain the smallest effective sample size "
                        f"is {found} (R-hat {rhat:.3f}), and {self.ess:.0f} were asked for. Pass "
                        "draws=, a larger max_passes, or reparametrise the slowest variables."
                    )
                return True
            self.look_at = min(self.most, int(np.ceil(GROWTH * self.look_at)))
        return False

    def _look(self) -> Convergence:
        begin = self.in_memory.n_warmup
        each = [
            np.stack([t.samples[name][begin : begin + self.look_at] for t in self.in_memory.traces])
            for name in self.names
        ]
        return convergence(each)
