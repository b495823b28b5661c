"""The contender posteriors (PyTorch): its own SGNHT on the data and models of loops.py.

    python benchmarks/loop_posteriors.py blr float32
    python benchmarks/loop_posteriors.py mlp float32 --device cuda

prints a JSON line. `speed.py --posteriors PYTHON` runs it among the others, with the interpreter of
an environment with posteriors and torch. PyTorch has no compiled loop: a Python loop of
updates is what its user would write.
"""

import argparse
import json
from functools import partial

import posteriors
import torch
from loops import MODELS, data, initial_weights, microseconds_per_update, weight_shapes
from torch.nn.functional import conv2d, cross_entropy, max_pool2d, relu, softplus


def updates(model: str, dtype: str, settings: dict, device: str = "cpu"):
    """A callable that runs the updates of one block and waits until they are done."""
    N, n = settings["n_rows"], settings["batch_size"]
    X, y = (torch.as_tensor(a, device=device) for a in data(model, dtype, N, settings["columns"]))
    zeros = partial(torch.zeros, dtype=X.dtype, device=device)
    if model == "blr":
        theta = {"w": zeros(X.shape[1]), "b": zeros(())}
        prior_variance = 10.0

        def log_likelihood(theta, X, y):
            logit = X @ theta["w"] + theta["b"]
            return (y * logit - softplus(logit)).mean()
    else:
        y = y.long()
        weights = initial_weights(settings, dtype).items()
        theta = {name: torch.as_tensor(W, device=device) for name, W in weights}
        shapes = weight_shapes(settings)
        theta |= {f"b{k}": zeros(shape[-1]) for k, shape in enumerate(shapes)}
        for k, shape in enumerate(shapes):
            if len(shape) == 4:  # PyTorch has channels first
                theta[f"W{k}"] = theta[f"W{k}"].permute(3, 2, 0, 1).contiguous()
        prior_variance = 1.0

        def log_likelihood(theta, X, y):
            a = X
            for k, shape in enumerate(shapes):
                W, b = theta[f"W{k}"], theta[f"b{k}"]
                if len(shape) == 4:
                    a = a.reshape(-1, 1, 28, 28) if k == 0 else a
                    a = max_pool2d(relu(conv2d(a, W, b)), 2)
                    continue
                a = a.reshape(-1, shape[0]) @ W + b
                a = relu(a) if k < len(shapes) - 1 else a
            return -cross_entropy(a, y)

    def log_posterior(theta, batch):  # divided by N, as posteriors wants it
        prior = -0.5 / prior_variance * sum(t.square().sum() for t in theta.values())
        return log_likelihood(theta, *batch) + prior / N, torch.tensor([])

    sampler = posteriors.sgmcmc.sgnht.build(
        log_posterior, lr=settings["step_size"] * N**0.5, alpha=1.0, temperature=1 / N
    )
    carry = {"state": sampler.init(theta)}

    def run():
        for _ in range(settings["updates"]):
            rows = torch.randint(0, N, (n,), device=device)
            carry["state"], _ = sampler.update(carry["state"], (X[rows], y[rows]), inplace=True)

        if device != "cpu":
            torch.cuda.synchronize()

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("dtype", choices=["float32", "float64"])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to measure")
    args = parser.parse_args()
    torch.manual_seed(0)
    settings = MODELS[args.model]
    run = updates(args.model, args.dtype, settings, args.device)
    run()
    us, _, repeats = microseconds_per_update(run, settings["updates"], args.seconds)
    print(json.dumps({"us_per_update": us, "repeats": repeats}))


if __name__ == "__main__":
    main()
