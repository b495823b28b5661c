"""Sigmoid belief networks: the model, starts, rows simulated from it, estimates of log p(x).

Doubly stochastic paper, section 3 and appendix B. `sbn.py` trains them.
"""

from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from scipy.special import expit, logit

import pymc_sgmcmc as sgm

JAX = {"mode": "JAX"}
LARGEST_FILE = 500_000
"""Bytes: parameters that take more are not saved."""
N_SIMULATED = 10
"""Rows simulated from the model, to check the annealing on."""
BRIEFLY = {"chains": 8, "temperatures": 30}
"""Annealing of the rows that are not evaluated with all temperatures."""


def belief_network(
    x: np.ndarray, layers: list[int], autoregressive: bool = False, normal: float = 0.0
) -> pm.Model:
    """A deep sigmoid belief network; z1 is the layer next to the pixels.

    An autoregressive one has links within layers too, each unit to those after it (eq 13, 14).
    Weights are sparse, from Student's t with the paper's numbers, or ``normal`` with that sd.
    """

    def prior(name: str, shape, dims) -> pt.TensorVariable:
        if normal:
            return pm.Normal(name, 0, normal, shape=shape, dims=dims)
        return pm.StudentT(name, nu=2.2, mu=0, sigma=0.09, shape=shape, dims=dims)

    coords = {"row": np.arange(len(x)), "pixel": np.arange(x.shape[1])}
    coords |= {f"unit{k}": np.arange(n) for k, n in enumerate(layers, 1)}
    with pm.Model(coords=coords) as model:
        images = pm.Data("images", x, dims=("row", "pixel"))
        log_odds = prior("b", layers[-1], f"unit{len(layers)}")
        for k in range(len(layers), 0, -1):
            unit, size = f"unit{k}", layers[k - 1]
            if autoregressive:
                # a layer given itself is no distribution of PyMC's: coins, and a correction
                z = pm.Bernoulli(f"z{k}", 0.5, dims=("row", unit))
                log_odds = log_odds + z @ pt.triu(prior(f"u{k}", (size, size), None), 1)
                coins = z * log_odds - pt.softplus(log_odds) + np.log(2)
                pm.Potential(f"layer{k}", coins, dims=("row", unit))
            else:
                z = pm.Bernoulli(f"z{k}", logit_p=log_odds, dims=("row", unit))
            below, n_below = (f"unit{k - 1}", layers[k - 2]) if k > 1 else ("pixel", x.shape[1])
            log_odds = z @ prior(f"w{k}", (size, n_below), (unit, below))
            log_odds = log_odds + prior(f"c{k}", n_below, below)
        if autoregressive:
            links = prior("s", (x.shape[1], x.shape[1]), None)
            log_odds = log_odds + pt.cast(images, pytensor.config.floatX) @ pt.triu(links, 1)
        pm.Bernoulli("x", logit_p=log_odds, observed=images, dims=("row", "pixel"))
    return model


def biases_of_units(n_layers: int) -> list[str]:
    """Names of the biases of the hidden layers; c1 is that of the pixels."""
    return ["b", *(f"c{k}" for k in range(2, n_layers + 1))]


def start(model: pm.Model, x, scale: float, seed: int) -> dict[str, np.ndarray]:
    """Random weights between layers, smaller ones within, and the pixels' log odds as biases."""
    rng = np.random.default_rng(seed)
    point = {
        name: ((scale if name.startswith("w") else 0.1) * rng.normal(size=value.shape)).astype(
            value.dtype
        )
        for name, value in model.initial_point().items()
    }
    some = x[:10_000]
    mean = (some.sum(axis=0) + 0.5) / (len(some) + 1)
    return point | {"c1": logit(mean).astype(point["c1"].dtype)}


def one_draw(theta: xr.Dataset) -> dict[str, np.ndarray]:
    """The only draw of each variable."""
    return {name: draws.values[0, 0] for name, draws in theta.items()}


def rounded(theta: xr.Dataset) -> xr.Dataset:
    """In the half precision in which parameters are saved, so that a file tells all about them."""
    return theta.map(lambda v: v.astype("float16").astype(v.dtype))


def save_parameters(path: Path, theta: xr.Dataset) -> bool:
    """Save one draw in half precision, unless it is large; tell whether it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = one_draw(theta)
    for name in values:
        if name[0] in "us":  # links within a layer: only those above the diagonal count
            values[name] = values[name][np.triu_indices_from(values[name], 1)]
    np.savez_compressed(path, **{name: v.astype("float16") for name, v in values.items()})
    if path.stat().st_size <= LARGEST_FILE:
        return True
    path.unlink()
    return False


def load_parameters(path: Path) -> xr.Dataset:
    """One draw, as `save_parameters` saved it."""
    out = {}
    with np.load(path) as file:
        for name, saved in file.items():
            value = saved.astype(pytensor.config.floatX)
            if name[0] in "us":
                n = round((1 + np.sqrt(1 + 8 * len(saved))) / 2)
                value = np.zeros((n, n), value.dtype)
                value[np.triu_indices(n, 1)] = saved
            dims = ("chain", "draw", *(f"{name}_{k}" for k in range(value.ndim)))
            out[name] = (dims, value[None, None])
    return xr.Dataset(out, coords={"chain": [0], "draw": [0]})


def draw_units(rng, log_odds: np.ndarray, links: np.ndarray | None):
    """Draw a layer, and its probabilities: each unit given those before it, if there are links."""
    if links is None:
        p = expit(log_odds)
        return rng.random(p.shape) < p, p
    drawn, p = np.zeros((2, *log_odds.shape))
    for k in range(log_odds.shape[1]):
        p[:, k] = expit(log_odds[:, k] + drawn[:, :k] @ links[:k, k])
        drawn[:, k] = rng.random(len(p)) < p[:, k]
    return drawn, p


def simulate(theta: xr.Dataset, n_layers: int, n: int, seed: int):
    """Draw rows from the model, layer by layer.

    Returns
    -------
    tuple
        The units of each layer by name, the images, and the probabilities of their pixels.
    """
    rng = np.random.default_rng(seed)
    values, units = one_draw(theta), {}
    log_odds = np.tile(values["b"], (n, 1))
    for k in range(n_layers, 0, -1):
        units[f"z{k}"], _ = draw_units(rng, log_odds, values.get(f"u{k}"))
        log_odds = units[f"z{k}"] @ values[f"w{k}"] + values[f"c{k}"]
    images, p = draw_units(rng, log_odds, values.get("s"))
    return units, images, p


def live_units(theta: xr.Dataset, sizes: list[int]) -> str:
    """Numbers of units by layer that are neither nearly always 0 nor 1, of 5000 simulated rows."""
    units, _, _ = simulate(theta, len(sizes), 5000, seed=0)
    shares = [units[f"z{k}"].mean(axis=0) for k in range(1, len(sizes) + 1)]
    return "-".join(str(np.sum((share > 0.01) & (share < 0.99))) for share in shares)


def some_rows(x: np.ndarray, n: int) -> np.ndarray:
    """Rows at random, always the same ones; all with n = 0."""
    return x[np.random.default_rng(0).permutation(len(x))[: n or len(x)]]


def annealing(model, theta, x: np.ndarray, *, layers, chains, temperatures, seed, simulated=None):
    """Annealed importance sampling on rows x, along the paper's path."""
    return sgm.log_marginal_likelihood(
        theta,
        [f"z{k + 1}" for k in range(layers)],
        data={"images": x},
        n_samples=chains,
        n_temperatures=temperatures,
        path="parameters",
        simulated=simulated,
        model=model,
        random_seed=seed,
        compile_kwargs=JAX,
    )


def evaluation(
    model, theta: xr.Dataset, x: np.ndarray, n_rows: int, network, n_importance, **settings
) -> dict:
    """Estimates of the mean of log p(x) over the rows x: what a line of the table shows of them.

    The first ``n_rows`` rows are evaluated with the given settings, all of x briefly too. Images
    differ by far more than the two estimates of one image do, so the mean of the brief ones over
    all of x, plus the mean difference over the first rows, is much closer to the mean over all
    images than the first rows alone (a difference estimator of survey sampling).

    ``network`` is a trained `NeuralImportance` or None, the proposal of importance sampling.
    """
    seed, layers = settings["seed"], settings["layers"]
    brief = annealing(model, theta, x, **settings | BRIEFLY).log_p.values.ravel()
    everything, x = x, x[:n_rows]
    ais = annealing(model, theta, x, **settings)
    z, drawn, _ = simulate(theta, layers, N_SIMULATED, seed)
    check = annealing(model, theta, drawn.astype(x.dtype), simulated=z, **settings)
    out = {
        "runs": settings["chains"],
        "AIS": f"{ais.mean_log_p.item():.1f}",
        "+-": f"{ais.mean_log_p_mcse.item():.2f}",
        "ESS": f"{ais.ess.mean().item():.1f}",
        "gap": f"{check.gap.item():.2f} +- {check.gap_mcse.item():.2f}",
    }
    best = ais
    if network is not None:
        by_network = sgm.log_marginal_likelihood(
            theta,
            network,
            data={"images": x},
            method="importance",
            n_samples=n_importance,
            model=model,
            random_seed=seed,
            compile_kwargs=JAX,
        )
        best = max(ais, by_network, key=lambda estimate: estimate.mean_log_p.item())
        out |= {
            "network": f"{by_network.mean_log_p.item():.1f}",
            "network +-": f"{by_network.mean_log_p_mcse.item():.2f}",
            "network ESS": f"{by_network.ess.median().item():.1f}",
        }
    difference = best.log_p.values.ravel() - brief[: len(x)]
    variance = difference.var() / len(x) + brief.var() / len(everything)
    return out | {
        "better": f"{best.mean_log_p.item():.1f}",
        "test set": f"{brief.mean() + difference.mean():.1f}",
        "test set +-": f"{np.sqrt(variance):.1f}",
        "rows": f"{len(x)} random test images, {len(everything)} briefly",
    }
