"""Stop a run once its effective sample size is what was asked for and the verdict can be told.

That depends on how many draws all chains have, never on time.
"""

import logging
from collections.abc import Callable

import numpy as np

from pymc_sgmcmc.run.convergence import Convergence, convergence
from pymc_sgmcmc.run.result import InMemoryDraws
from pymc_sgmcmc.run.run import Run

_log = logging.getLogger("pymc.sgmcmc")

FEWEST = 500
"""Number of draws of each chain after which the effective sample size is computed first."""
MOST = 10_000
"""Number of draws after which it is computed last."""
GROWTH = 1.5
"""Factor between the numbers of draws after which it is computed."""
LARGEST_RHAT = 1.01


class EnoughDraws:
    """Whether draws in memory have the effective sample size ``ess``, or are the run's ``draws``.

    ``times_as_many_draws`` returns how many times as many draws the verdict needs to be clear.
    """

    def __init__(
        self,
        run: Run,
        in_memory: InMemoryDraws,
        ess: float,
        times_as_many_draws: Callable[[], float] | None = None,
    ):
        self.in_memory = in_memory
        self.ess = ess
        self.times_as_many_draws = times_as_many_draws
        self._last_times = np.inf
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
            at_end = self.look_at == self.most
            if at_end or (enough and self._verdict_is_clear()):
                self._cut([n_warmup + self.look_at] * len(traces))
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

    def _verdict_is_clear(self) -> bool:
        """Whether the verdict can be told, or as many draws as are possible would not help."""
        if self.times_as_many_draws is None:
            return True
        lengths = [trace.draw_idx for trace in self.in_memory.traces]
        self._cut([self.in_memory.n_warmup + self.look_at] * len(lengths))
        times = self.times_as_many_draws()
        self._cut(lengths)
        last, self._last_times = self._last_times, times
        return times <= 1 or times >= last or times * self.look_at > self.most

    def _cut(self, lengths: list[int]) -> None:
        for trace, length in zip(self.in_memory.traces, lengths, strict=True):
            trace.draw_idx = length

    def _look(self) -> Convergence:
        begin = self.in_memory.n_warmup
        each = [
            np.stack([t.samples[name][begin : begin + self.look_at] for t in self.in_memory.traces])
            for name in self.names
        ]
        return convergence(each)
