"""Deep sigmoid belief networks on binary images (doubly stochastic paper, section 4, Table 2).

One run trains one network by SGHMC with the paper's settings (section 4.1: batches of 100, learning
rate of the mean gradient 0.01, momentum decay 0.05, Student-t priors with nu 2.2 and scale 0.09,
five draws of the latent variables after five of burn-in for Gibbs, five weighed ones for the neural
proposal with Adam at 0.001), evaluates its last draw of theta on test images, draws a figure, and
adds its line to results/sbn.txt:

    python examples/sbn.py --data ocr --layers 200 --latents gibbs --updates 20000

Learning from the draws of theta needs no care: the model is written once for all of it, and
`step.model` is the model without its latent variables.
"""

import json
import time

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from common import RESULTS, Report, arguments
from datasets import load_caltech_silhouettes, load_mnist_binarised, load_ocr_letters
from scipy.special import expit, logit

import pymc_sgmcmc as sgm

DATA = {
    "ocr": load_ocr_letters,
    "caltech": load_caltech_silhouettes,
    "mnist": load_mnist_binarised,
}
PAPER = {
    ("mnist", "gibbs"): {"200": -102.9, "200-200": -100.6, "200-200-200": -97.5},
    ("mnist", "neural"): {"200": -103.2, "200-200": -93.7, "200-200-200": -91.4},
    ("caltech", "gibbs"): {"200": -116.7, "200-200": -100.8, "200-200-200": -96.3},
    ("caltech", "neural"): {"200": -128.8, "200-200": -114.9, "200-200-200": -113.6},
    ("ocr", "gibbs"): {"200": -42.2, "200-200": -39.8, "200-200-200": -38.1},
    ("ocr", "neural"): {"200": -37.5, "200-200": -33.2, "200-200-200": -33.3},
}
"""Average test log likelihoods of the paper's Table 2."""
JAX = {"mode": "JAX"}


def prior(name: str, shape, dims) -> pt.TensorVariable:
    """Sparse weights: Student's t with the paper's numbers."""
    return pm.StudentT(name, nu=2.2, mu=0, sigma=0.09, shape=shape, dims=dims)


def belief_network(x: np.ndarray, layers: list[int]) -> pm.Model:
    """A deep sigmoid belief network; z1 is the layer next to the pixels."""
    coords = {"row": np.arange(len(x)), "pixel": np.arange(x.shape[1])}
    coords |= {f"unit{k}": np.arange(n) for k, n in enumerate(layers, 1)}
    with pm.Model(coords=coords) as model:
        images = pm.Data("images", x, dims=("row", "pixel"))
        top = len(layers)
        logit_z = prior("b", layers[-1], f"unit{top}")
        for k in range(top, 0, -1):
            z = pm.Bernoulli(f"z{k}", logit_p=logit_z, dims=("row", f"unit{k}"))
            below = f"unit{k - 1}" if k > 1 else "pixel"
            size = layers[k - 2] if k > 1 else x.shape[1]
            w = prior(f"w{k}", (layers[k - 1], size), (f"unit{k}", below))
            logit_z = z @ w + prior(f"c{k}", size, below)
        pm.Bernoulli("x", logit_p=logit_z, observed=images, dims=("row", "pixel"))
    return model


def start(model: pm.Model, x: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Small random weights, and the pixels' own log odds as their biases."""
    rng = np.random.default_rng(seed)
    point = {
        name: (0.1 * rng.normal(size=value.shape)).astype(value.dtype)
        for name, value in model.initial_point().items()
    }
    mean = (x.sum(axis=0) + 0.5) / (len(x) + 1)
    return point | {"c1": logit(mean).astype(point["c1"].dtype)}


def train(model: pm.Model, latents, x: np.ndarray, args):
    """Draws of theta, each ``thin`` updates apart, and the seconds at which they were made."""
    step = sgm.SGHMC_S.from_momentum_decay(
        learning_rate=args.learning_rate,
        momentum_decay=args.momentum_decay,
        per_datum=len(x),
        batch_size=args.batch,
        thin=args.thin,
        latents=latents,
        model=model,
        self_check=False,
        compile_kwargs=JAX,
    )
    seconds, began = [], time.perf_counter()

    def note(trace, draw):
        seconds.append(time.perf_counter() - began)
        if draw.draw_idx % 10 == 0:
            print(f"  {draw.draw_idx}: {seconds[-1]:.0f} s, {draw.stats[0]['potential']:.4g}")

    idata = pm.sample(
        model=step.model,
        step=step,
        draws=args.updates // args.thin,
        tune=0,
        chains=1,
        cores=1,
        initvals=start(step.model, x, args.seed),
        random_seed=args.seed,
        progressbar=False,
        compute_convergence_checks=False,
        callback=note,
    )
    return step, idata, np.array(seconds)
