"""The default call on a network: 784-100-10, N(0, 1) priors, 10,000 images of MNIST.

Prints what the warm-up chose, the verdict, and the share of correct predictions and the mean log
likelihood on the 10,000 test images, of single draws and of averages over draws.

    python docs/scripts/network.py > docs/scripts/network.txt
"""

import sys
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

import pymc_sgmcmc as sgm

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from datasets import load_mnist

pytensor.config.floatX = "float32"
SIZES = (784, 100, 10)


def network(X, y) -> pm.Model:
    """One hidden layer of rectified units."""
    with pm.Model() as model:
        W1 = pm.Normal("W1", 0, 1, shape=SIZES[:2])
        b1 = pm.Normal("b1", 0, 1, shape=SIZES[1])
        W2 = pm.Normal("W2", 0, 1, shape=SIZES[1:])
        b2 = pm.Normal("b2", 0, 1, shape=SIZES[2])
        hidden = pt.maximum(pm.Data("X", X) @ W1 + b1, 0)
        pm.Categorical("y", logit_p=hidden @ W2 + b2, observed=y)
    return model


def probabilities(w, X) -> np.ndarray:
    """Of the classes, for one draw of the weights."""
    logits = np.maximum(X @ w["W1"] + w["b1"], 0) @ w["W2"] + w["b2"]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def main():
    """Sample and print."""
    digits = load_mnist()
    X, y = digits.X[:10_000], digits.y[:10_000]
    with network(X, y):
        tree = sgm.sample(
            30, chains=2, random_seed=1, progressbar=False, compile_kwargs={"mode": "JAX"}
        )
    print("python docs/scripts/network.py")
    print(tree.posterior.attrs["adaptation"])
    print(f"passes over the data: {tree.posterior.attrs['data_passes']:.0f}")
    print(f"verdict: {tree['diagnosis'].attrs['verdict']}. {tree['diagnosis'].attrs['remedy']}")
    print(f"{'':28}{'correct':>9}{'log likelihood':>16}")

    def line(name, p):
        right = np.mean(p.argmax(axis=1) == digits.y_test)
        fit = np.log(p[np.arange(len(p)), digits.y_test]).mean()
        print(f"{name:<28}{right:>9.4f}{fit:>16.3f}")

    averages = []
    for chain in tree.posterior.to_dataset().chain:
        draws = tree.posterior.to_dataset().sel(chain=chain)
        each = [
            probabilities({v: draws[v].values[k] for v in draws}, digits.X_test)
            for k in range(draws.sizes["draw"])
        ]
        line(f"chain {int(chain)}, last draw", each[-1])
        averages.append(np.mean(each, axis=0))
        line(f"chain {int(chain)}, average", averages[-1])
    line("average over both chains", np.mean(averages, axis=0))


if __name__ == "__main__":
    main()
