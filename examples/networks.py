"""What the examples with neural networks share: models, starts, runs that can be killed."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from common import RESULTS

import pymc_sgmcmc as sgm

JAX = {"mode": "JAX"}


def relu(x):
    """Rectified linear units."""
    return pt.maximum(x, 0)


def fully_connected(h, sizes: Sequence[int], activation: Callable, prior_sd: float):
    """Layers from ``sizes[0]`` inputs to ``sizes[-1]`` outputs; the last one is linear."""
    for k, (n_in, n_out) in enumerate(pairwise(sizes), 1):
        W = pm.Normal(f"W{k}", 0, prior_sd, shape=(n_in, n_out))
        b = pm.Normal(f"b{k}", 0, prior_sd, shape=n_out)
        h = h @ W + b
        h = h if k == len(sizes) - 1 else activation(h)
    return h


def classifier(
    X: np.ndarray,
    y: np.ndarray,
    hidden: Sequence[int],
    *,
    activation: Callable = relu,
    prior_sd: float = 1.0,
) -> pm.Model:
    """A network for classes, with N(0, prior_sd^2) weights and biases."""
    with pm.Model() as model:
        x = pm.Data("X", X)
        sizes = [X.shape[1], *hidden, int(y.max()) + 1]
        logits = fully_connected(x, sizes, activation, prior_sd)
        pm.Categorical("y", logit_p=logits, observed=y)
    return model


def convolutional(X: np.ndarray, y: np.ndarray, prior_sd: float = 1.0) -> pm.Model:
    """Of LeNet's type: 5 x 5 convolutions to 32 and 64 channels, pooling, 200-200 (pSGLD paper)."""
    with pm.Model() as model:
        h = pm.Data("X", X).reshape((-1, 28, 28, 1))
        for k, (old, new) in enumerate([(1, 32), (32, 64)], 1):
            kernel = pm.Normal(f"K{k}", 0, prior_sd, shape=(5, 5, old, new))
            c = pm.Normal(f"c{k}", 0, prior_sd, shape=new)
            h = sgm.max_pool2d(relu(sgm.conv2d(h, kernel) + c))
        logits = fully_connected(h.reshape((-1, 1024)), [1024, 200, 200, 10], relu, prior_sd)
        pm.Categorical("y", logit_p=logits, observed=y)
    return model


def random_start(model: pm.Model, seed: int) -> dict[str, np.ndarray]:
    """Weights of variance 2 / inputs (He et al. 2015), biases 0."""
    rng, start = np.random.default_rng(seed), {}
    for rv in model.free_RVs:
        shape = tuple(rv.type.shape)
        scale = np.sqrt(2 / np.prod(shape[:-1])) if len(shape) > 1 else 0.0
        start[rv.name] = (scale * rng.normal(size=shape)).astype(rv.dtype)
    return start


def run(
    name: str,
    model: pm.Model,
    step: Any,
    predictions: Any,
    *,
    draws: int,
    tune: int,
    seed: int,
    start: dict[str, np.ndarray],
    fresh: bool,
) -> Any:
    """Sample one chain and keep only its averages; a killed run goes on when it is called again."""
    folder = RESULTS / "runs" / f"{name}.zarr"
    if fresh and folder.exists():
        shutil.rmtree(folder)
    with model:
        return sgm.sample(
            draws,
            tune=tune,
            chains=1,
            step=step,
            predictions=predictions,
            var_names=[],
            initvals=[start],
            random_seed=seed,
            trace=sgm.ZarrStore(folder, seconds=60),
            resume=True,
            include_data=False,
            compute_convergence_checks=False,
        )


class Rows:
    """Finished rows of a table in a file, so that a killed script does not begin anew."""

    def __init__(self, path: Path, settings: dict[str, Any], fresh: bool):
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.rows: dict[str, Any] = {}
        if path.exists() and not fresh:
            stored = json.loads(path.read_text())
            if stored["settings"] == self.settings:
                self.rows = stored["rows"]

    def get(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a row, made now if it is not there; ``seconds`` is added."""
        if key not in self.rows:
            began = time.perf_counter()
            print(f"-- {key}", flush=True)
            self.rows[key] = make() | {"seconds": time.perf_counter() - began}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"settings": self.settings, "rows": self.rows}, indent=1)
            self.path.write_text(text + "\n")
        return self.rows[key]


def kinetic_temperature(tree: Any) -> float:
    """Mean over the kept draws; 1 if the noise of the batches adds no heat."""
    return float(tree.sample_stats["kinetic_temperature"].mean())


def scores(averages: Any) -> dict[str, Any]:
    """Numbers and learning curves of a group of averages, for a table."""
    curve = 100 * (1 - averages["running_accuracy"].values[0])
    return {
        "error": 100 * (1 - float(averages["accuracy"])),
        "last": 100 * (1 - float(averages["draw_accuracy"][0, -1])),
        "log_likelihood": float(averages["log_likelihood"]),
        "calibration_error": float(averages["calibration_error"]),
        "disagreement": float(averages["disagreement_of_draws"]),
        "curve": [round(float(e), 3) for e in curve],
        "last_curve": [round(100 * (1 - float(a)), 3) for a in averages["draw_accuracy"].values[0]],
    }
