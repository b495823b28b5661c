"""Stop a run once it has the requested effective sample size and a clear verdict.

The decision depends on the number of draws of all chains, never on time.
"""

import logging
from collections.abc import Callable

import numpy as np

from pymc_sgmcmc.run.convergence import Convergence, convergence
from pymc_sgmcmc.run.result import InMemoryDraws
from pymc_sgmcmc.run.run_events import Run

_log = logging.getLogger("pymc.sgmcmc")

FEWEST = 500
"""Number of draws of each chain after which the effective sample size is first computed."""
MOST = 10_000
"""Number of draws of each chain after which it is last computed."""
GROWTH = 1.5
"""Factor between successive numbers of draws at which it is computed."""
LARGEST_RHAT = 1.01


class EnoughDraws:
    """Decides whether the draws have the effective sample size ``ess`` or are all ``draws``.

    ``times_as_many_draws`` returns the factor by which a clear verdict needs more draws.
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
        """Judge the draws when due; if there are enough, cut all chains to the same length."""
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
                        f"is {found} (R-hat {rhat:.3f}), but {self.ess:.0f} was requested. Pass "
                        "draws= or a larger max_passes, or reparametrise the slowest variables."
                    )
                return True
            self.look_at = min(self.most, int(np.ceil(GROWTH * self.look_at)))
        return False

    def _verdict_is_clear(self) -> bool:
        """Whether the verdict is clear, or would stay unclear with as many draws as possible."""
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
