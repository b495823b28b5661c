r"""NeuralImportance: latent variables drawn by a recognition network and importance-weighted.

For each row x of a batch, L values z_s are drawn from a network q(z | x; phi) and given the weights

    w_s = p(x, z_s | theta) / q(z_s | x; phi),    W_s = w_s / (w_1 + ... + w_L),

with which grad log p(x | theta) is about sum_s W_s grad log p(x, z_s | theta) (doubly stochastic
paper, eq 6; the bias falls as 1 / L). The same draws train the network by ascending the gradient of
E_{p(z | x, theta)} log q(z | x; phi), estimated by sum_s W_s grad_phi log q(z_s | x; phi) averaged
over the batch (eq 8-10). This minimises the inclusive Kullback-Leibler divergence, so q covers the
posterior of z. The network's weights and Adam's moments (Kingma and Ba 2015) are carried from batch
to batch.
"""

from collections.abc import Mapping

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.algorithm import Tensors
from pymc_sgmcmc.latents.importance.recognition import (
    CustomRecognition,
    Inverted,
    ProposalFunction,
    Recognition,
)
from pymc_sgmcmc.latents.joint import Joint, LatentDraws, Latents
from pymc_sgmcmc.noise import NoiseStream
from pymc_sgmcmc.number_checks import nonnegative_number, true_or_false

FIRST_DECAY, SECOND_DECAY, SMALL = 0.9, 0.999, 1e-8
"""Adam's constants, as recommended by its authors (Kingma and Ba 2015)."""


class NeuralImportance(Latents):
    """Integrate latent variables out by importance sampling from a trained recognition network.

    Parameters
    ----------
    vars : list of random variables or names
        Bernoulli, Categorical or continuous latent variables. With ``proposal``, they are drawn
        in this order.
    n_samples : int, default 5
        L, draws per row; at least 2.
    proposal : callable, optional
        ``proposal(name, x, z, weights)`` returns the parameters of q for the latent variable of
        that name: logits for a Bernoulli one; logits with a last axis of the categories for a
        Categorical one; mean and log standard deviation (a pair), on the unconstrained scale, for a
        continuous one. ``x`` holds the batch's observed values and ``z`` the latent variables drawn
        so far, by name: tensors with leading axes (draws or 1, rows). ``weights`` has the network's
        weights. Default: a network that inverts the model's layers. It starts with the variables
        nearest to the data; the parameters of each are an affine function of the observed variables
        that depend on it and of the connected latent variables drawn so far.
    weights : dict of arrays, optional
        Initial weights of the network, by name. Required with ``proposal``; for the default
        network, those of a `trained` one.
    autoregressive : bool, default False
        In the default network, let each unit of a Bernoulli variable depend on the units drawn
        before it: a better proposal where units explain each other away, but drawn unit by unit.
    learning_rate : float, default 0.001
        Learning rate of Adam. 0 leaves the network unchanged.

    Raises
    ------
    ValueError
        For ``n_samples`` below 2, a ``learning_rate`` that is negative or not finite, ``proposal``
        without ``weights`` or together with ``autoregressive``. When a step is made: for a discrete
        variable of another distribution, and weights that do not fit the network.

    Notes
    -----
    The statistic ``importance_ess`` is the effective sample size 1 / sum_s W_s^2 of a row's
    weights, averaged over rows and updates: from 1 (one draw has all the weight) to L.

    References
    ----------
    C. Du, J. Zhu and B. Zhang (2015), Learning deep generative models with doubly stochastic MCMC,
    arXiv:1506.04557, section 2.2, eq 6 to 10, Algorithm 1.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> coords = {"obs": range(50), "unit": range(2), "pixel": range(3)}
    >>> with pm.Model(coords=coords):
    ...     w = pm.Normal("w", dims=("unit", "pixel"))
    ...     z = pm.Bernoulli("z", 0.5, dims=("obs", "unit"))
    ...     data = np.random.default_rng(0).integers(2, size=(50, 3))
    ...     x = pm.Bernoulli("x", logit_p=z @ w, observed=data, dims=("obs", "pixel"))
    ...     step = sgm.MSGNHT_S(
    ...         step_size=0.01, batch_size=10, latents=sgm.NeuralImportance([z], n_samples=5),
    ...         compile_kwargs={"mode": "JAX"},
    ...     )
    >>> [v.name for v in step.vars]
    ['w']
    """

    state_names = ("network", "network_mean", "network_square", "network_updates")

    @property
    def statistics(self):
        return ("importance_ess",)

    def __init__(
        self,
        vars,
        n_samples: int = 5,
        *,
        proposal: ProposalFunction | None = None,
        weights: Mapping[str, np.ndarray] | None = None,
        autoregressive: bool = False,
        learning_rate: float = 1e-3,
    ):
        super().__init__(vars, n_samples)
        if self.n_samples < 2:
            raise ValueError("n_samples=1 gives every draw the weight 1: pass at least 2.")
        if proposal is not None and weights is None:
            raise ValueError("proposal= needs weights=, a dict of the network's initial weights.")
        if proposal is not None and autoregressive:
            raise ValueError("autoregressive=True is for the default network: leave out proposal=.")
        self.proposal = proposal
        self.weights = weights
        self.autoregressive = true_or_false("autoregressive", autoregressive)
        self.learning_rate = nonnegative_number("learning_rate", learning_rate)

    def check(self, joint):
        self._network(joint)

    def init(self, joint, rng):
        weights = self._network(joint).init(rng)
        arrays = [np.array(w, dtype=pytensor.config.floatX) for w in weights.values()]
        zeros = [np.zeros_like(a) for a in arrays]
        updates = np.zeros((), dtype=pytensor.config.floatX)
        return dict(zip(self.state_names, [arrays, zeros, zeros, [updates]], strict=True))

    def _network(self, joint: Joint) -> Recognition:
        if self.proposal is None:
            return Inverted(joint, self.weights, self.autoregressive)
        return CustomRecognition(joint.variables, self.proposal, self.weights or {})

    def draw(self, joint, state, stream):
        arrays, mean, square, [updates] = (state[name] for name in self.state_names)
        network = self._network(joint)
        weights = dict(zip(network.names, arrays, strict=True))
        z, log_q = network.draw(joint, weights, self.n_samples, stream)
        flat = [
            value.reshape((self.n_samples * joint.n_rows, *v.shape)).astype(v.dtype)
            for value, v in zip(z, joint.variables, strict=True)
        ]
        log_p = joint.log_density(flat, self.n_samples).reshape((self.n_samples, joint.n_rows))
        w = disconnected_grad(pt.special.softmax(log_p - log_q, axis=0))
        ess = pt.mean(1 / pt.sum(w**2, axis=0))
        # eq 9 and 10 as a mean over the batch, since Adam is invariant to the scale
        objective = pt.sum(w * log_q) / joint.n_rows
        gradient = pt.grad(objective, arrays, disconnected_inputs="ignore")
        moved = self._adam(arrays, gradient, mean, square, updates)
        return LatentDraws(z, w, dict(zip(self.state_names, moved, strict=True)), [ess])

    def _adam(self, weights, gradient, mean, square, updates):
        """Return weights, moments and number of updates after one ascent step of Adam."""
        t = updates + 1
        a, b = FIRST_DECAY, SECOND_DECAY
        mean = [a * m + (1 - a) * g for m, g in zip(mean, gradient, strict=True)]
        square = [b * v + (1 - b) * g**2 for v, g in zip(square, gradient, strict=True)]
        rate = self.learning_rate * pt.sqrt(1 - b**t) / (1 - a**t)
        weights = [
            w + rate * m / (pt.sqrt(v) + SMALL)
            for w, m, v in zip(weights, mean, square, strict=True)
        ]
        return weights, mean, square, [t]

    def trained(self, step) -> "NeuralImportance":
        """Return a copy with the network that a step has trained.

        Its weights are those after the step's last draw in this process: after `pm.sample` with
        ``cores=1`` they are those of the last chain.

        Parameters
        ----------
        step : minibatch step
            Made with ``latents=`` this object.

        Returns
        -------
        NeuralImportance
            A copy with ``weights`` set, for another step or for `log_marginal_likelihood`.

        Raises
        ------
        ValueError
            If the step has other latents or has not drawn yet.

        Examples
        --------
        >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
        >>> y = np.concatenate([np.linspace(-3, -1, 50), np.linspace(2, 4, 50)])
        >>> with pm.Model(coords={"obs": range(100)}):
        ...     centre = pm.Normal("centre", [-1, 1], 3)
        ...     z = pm.Bernoulli("z", 0.5, dims="obs")
        ...     y = pm.Normal("y", centre[z], 1, observed=y, dims="obs")
        ...     latents = sgm.NeuralImportance([z])
        ...     step = sgm.MSGNHT_S(
        ...         step_size=0.02, batch_size=20, latents=latents, compile_kwargs={"mode": "JAX"}
        ...     )
        >>> point, stats = step.step(step.model.initial_point())
        >>> sorted(latents.trained(step).weights)
        ['z', 'z from y']
        """
        if step.latents is not self or step.sampler_state is None:
            raise ValueError(
                "The step has not made a draw with these latents in this process: pass a step that "
                "was made with them, after pm.sample(..., cores=1)."
            )
        names = self._network(step.source.joint).names
        return NeuralImportance(
            [v.name for v in step.source.joint.variables],
            self.n_samples,
            proposal=self.proposal,
            autoregressive=self.autoregressive,
            weights=dict(zip(names, step.sampler_state["network"], strict=True)),
            learning_rate=self.learning_rate,
        )

    def propose(self, joint: Joint, stream: NoiseStream) -> tuple[Tensors, TensorVariable]:
        """Draw once per row from the network with the given weights: z and log q(z | x)."""
        if self.weights is None:
            raise ValueError("NeuralImportance has no weights yet: pass latents.trained(step).")
        weights = {name: pt.as_tensor(w) for name, w in self.weights.items()}
        z, log_q = self._network(joint).draw(joint, weights, 1, stream)
        values = [v[0].astype(var.dtype) for v, var in zip(z, joint.variables, strict=True)]
        return values, log_q[0]
