"""The samplers of posteriors (PyTorch) on the problem of bias_table.py, which runs this.

    PYTHON benchmarks/bias_posteriors.py problem.npz '{"draws": 1000, ...}'

PYTHON is the interpreter of an environment with posteriors and torch. Writes draws of z to
problem.out.npz, an array of shape (batch sizes, draws, d) for each sampler and step size. All
posterior draws of a sampler come from many chains at once: PyTorch has no compiled loop.
"""

import json
import sys
from pathlib import Path

import numpy as np
import posteriors
import torch

CHAINS = 100


def main():
    """Run all samplers."""
    path, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    with np.load(path) as problem:
        X, y, L, mean = (torch.as_tensor(problem[name]) for name in ("X", "y", "L", "mean"))
    torch.manual_seed(0)
    (N, d), every = X.shape, settings["every"]
    # Chains are independent: the gradient of the sum of their log posteriors is that of each.
    start = torch.zeros(CHAINS, d, dtype=X.dtype)

    def log_posterior(z, rows):  # divided by N, as posteriors wants it
        theta = mean + z @ L.T
        residuals = y[rows] - torch.einsum("cnd,cd->cn", X[rows], theta)
        prior = -0.5 * (theta**2).sum() / 100
        return -0.5 * residuals.square().mean(dim=1).sum() + prior / N, torch.tensor([])

    # In posteriors' time a step of h is one of h sqrt(N), and D becomes D / sqrt(N).
    momentum = {
        "alpha": N**-0.5,
        "temperature": 1 / N,
        "momenta": torch.randn_like(start) / N**0.5,
    }
    samplers = {
        "posteriors.sgld": (posteriors.sgmcmc.sgld, "langevin", N / 2, {"temperature": 1 / N}),
        "posteriors.sghmc": (posteriors.sgmcmc.sghmc, "momentum", N**0.5, momentum),
    }
    out = {}
    for name, (module, kind, factor, options) in samplers.items():
        for h in settings["steps"][kind]:
            found = []
            for n in settings["batch_sizes"]:
                sampler = module.build(log_posterior, lr=h * factor, **options)
                state = sampler.init(start.clone())
                kept = []
                n_kept = settings["draws"] // CHAINS + 1
                burn_in = max(50, int(20 / h / every))
                for k in range(burn_in + n_kept):
                    for _ in range(every):
                        rows = torch.randint(0, N, (CHAINS, n))
                        state, _ = sampler.update(state, rows, inplace=True)
                    if k >= burn_in:
                        kept.append(state.params.detach().clone())
                found.append(torch.cat(kept)[: settings["draws"]].numpy())
            out[f"{name} {h}"] = np.array(found)
    np.savez(path.with_suffix(".out.npz"), **out)


if __name__ == "__main__":
    main()
