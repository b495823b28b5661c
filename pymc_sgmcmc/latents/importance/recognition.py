"""Recognition networks q(z | x), which draw the latent variables of a batch given its data.

q is a product of conditionals, one for each latent variable in the order of drawing. The variable's
type determines the family of its conditional; the network computes the parameters.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.algorithm import Tensors
from pymc_sgmcmc.latents.joint import Joint, LatentVariable
from pymc_sgmcmc.latents.scan import strict_scan
from pymc_sgmcmc.noise import NoiseStream

type Named = dict[str, TensorVariable]
type ProposalFunction = Callable[[str, Named, Named, Named], Any]


def binary_draw(logit, uniform):
    """Return whether a binary variable is 1, from a uniform draw that is fine near 0.

    The less probable of the two values is drawn where the uniform is below its probability. In
    single precision uniforms near 1 are so coarse that values of probability 1e-20 would be drawn
    once in 1e7 times, each with an enormous weight.
    """
    rare = uniform < pt.sigmoid(-pt.abs(logit))
    return pt.switch(logit < 0, rare, ~rare)


class Bernoulli:
    """A Bernoulli family, whose parameters are logits, shaped like z."""

    outputs = 1

    def draw(self, logit, shape, stream):
        u = stream.fine_uniforms(shape, pytensor.config.floatX)
        return binary_draw(logit, u).astype(pytensor.config.floatX)

    def log_q(self, logit, z):
        return z * logit - pt.softplus(logit)


class AutoregressiveBernoulli:
    """Bernoulli units that depend on each other: logits, shaped like z, and links S of the
    flattened units.

    The logit of unit j is increased by the sum of S_ji z_i over i < j.
    """

    outputs = 1

    def draw(self, parameters, shape, stream):
        """Draw unit after unit; each changes the log odds of those after it."""
        logits, links = parameters
        n_units = math.prod(shape[2:])
        of_units = logits.reshape((*_lead(logits), n_units)).dimshuffle(2, 0, 1)
        of_units = pt.broadcast_to(of_units, (n_units, *shape[:2]))
        uniforms = stream.fine_uniforms(of_units.type.shape, logits.dtype)

        def unit(j, uniform, link, now):
            z = binary_draw(now[j], uniform).astype(now.dtype)
            return [z, now + link[:, None, None] * z]

        z, _ = strict_scan(
            unit,
            sequences=[pt.arange(n_units), uniforms, pt.tril(links, -1).T],
            outputs_info=[None, of_units],
            non_sequences=[],
            n_steps=n_units,
        )
        return z.dimshuffle(1, 2, 0).reshape(shape)

    def log_q(self, parameters, z):
        """Return the log probability of each element, given those before it."""
        logits, links = parameters
        n_units = links.type.shape[0]
        within = z.reshape((-1, n_units)) @ pt.tril(links, -1).T
        return Bernoulli().log_q(logits + within.reshape(z.shape), z)


class Categorical:
    """A categorical family; its parameters are logits, shaped like z with a last axis of
    categories.
    """

    def __init__(self, n_categories: int):
        self.outputs = n_categories

    def draw(self, logits, shape, stream):
        zero, one = np.zeros((), logits.dtype), np.ones((), logits.dtype)
        noise = stream.draw(pt.random.gumbel, zero, one, size=(*shape, self.outputs))
        return pt.argmax(logits + noise, axis=-1)

    def log_q(self, logits, z):
        chosen = pt.eq(z[..., None], np.arange(self.outputs))
        return pt.sum(chosen * pt.special.log_softmax(logits, axis=-1), axis=-1)


class Normal:
    """A normal family, whose parameters are mean and log standard deviation, each shaped like z."""

    outputs = 2

    def draw(self, parameters, shape, stream):
        mean, log_sd = parameters
        zero, one = np.zeros((), mean.dtype), np.ones((), mean.dtype)
        return mean + pt.exp(log_sd) * stream.draw(pt.random.normal, zero, one, size=shape)

    def log_q(self, parameters, z):
        mean, log_sd = parameters
        return -0.5 * ((z - mean) / pt.exp(log_sd)) ** 2 - log_sd - 0.5 * math.log(2 * math.pi)


type Family = Bernoulli | AutoregressiveBernoulli | Categorical | Normal


def family_of(variable: LatentVariable, autoregressive: bool = False) -> Family:
    """Return the family of q for a latent variable, or raise an error if none suits it.

    ``autoregressive`` lets the units of a Bernoulli variable depend on each other.
    """
    op = variable.batch_rv.owner.op
    if isinstance(op, BernoulliRV):
        several = math.prod(variable.shape) > 1
        return AutoregressiveBernoulli() if autoregressive and several else Bernoulli()
    if isinstance(op, CategoricalRV) and variable.support is not None:
        return Categorical(len(variable.support))
    transform = variable.transform
    if not variable.is_discrete and (transform is None or transform.ndim_supp == 0):
        return Normal()
    raise ValueError(
        f"NeuralImportance has no proposal for '{variable.name}': it supports Bernoulli variables, "
        "Categorical ones with a known number of categories, and continuous ones whose elements "
        "are transformed one by one. Use latents=sgm.Gibbs([...])."
    )


def _width(name: str, value: TensorVariable) -> int:
    """Return the number of elements in a row of an observed variable."""
    if None in value.type.shape[1:]:
        raise ValueError(
            f"The shape {value.type.shape} of the observed variable '{name}' is unknown within a "
            "row: give it shape= or dims= of known lengths."
        )
    return math.prod(value.type.shape[1:])


def _constrained(
    joint: Joint, variable: LatentVariable, u: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """Return the constrained value of a variable, and the log Jacobian of each element."""
    transform, inputs = variable.transform, variable.batch_rv.owner.inputs
    assert transform is not None
    z, log_jacobian = transform.backward(u, *inputs), transform.log_jac_det(u, *inputs)
    others = {v.value: v.name for v in joint.variables}
    for value in others.keys() & set(ancestors([z, log_jacobian])):
        raise ValueError(
            f"The bounds of '{variable.name}' depend on the latent variable '{others[value]}': "
            "NeuralImportance cannot draw it. Use latents=sgm.Gibbs([...])."
        )
    z, log_jacobian = joint.evaluate([z, log_jacobian])
    return z, log_jacobian


class Recognition(ABC):
    """A recognition network for the latent variables of a model."""

    def __init__(self, order: Sequence[LatentVariable], autoregressive: bool = False):
        self.order = list(order)
        self.families = {v.name: family_of(v, autoregressive) for v in self.order}

    names: list[str]
    """Names of the weights."""

    @abstractmethod
    def init(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return initial weights by name: the given ones, or random ones."""

    @abstractmethod
    def parameters(self, variable: LatentVariable, x: Named, z: Named, weights: Named):
        """Return the parameters of q: tensors with leading axes (draws or 1, rows)."""

    def draw(
        self, joint: Joint, weights: Named, n_samples: int, stream: NoiseStream
    ) -> tuple[Tensors, TensorVariable]:
        """Draw the latent variables in the joint's order, and also return their log q.

        The draws have the shapes (n_samples, rows, ...); log q has the shape (n_samples, rows), and
        only the weights have a gradient.
        """
        x = {name: value[None] for name, value in zip(joint.observed, joint.batch(), strict=True)}
        z: Named = {}
        terms = []
        for v in self.order:
            parameters = self.parameters(v, x, z, weights)
            family, shape = self.families[v.name], (n_samples, joint.n_rows, *v.shape)
            drawn = disconnected_grad(family.draw(parameters, shape, stream))
            log_q = family.log_q(parameters, drawn)
            if v.transform is not None:
                drawn, log_jacobian = _constrained(joint, v, drawn)
                log_q = log_q - log_jacobian
            z[v.name] = drawn
            terms.append(log_q.sum(axis=tuple(range(2, log_q.ndim))))
        return [z[name] for name in joint.names], pt.add(*terms, 0.0)


class CustomRecognition(Recognition):
    """A network given by the user as a function of (name, x, z, weights)."""

    def __init__(self, order, function: ProposalFunction, weights: Mapping[str, np.ndarray]):
        super().__init__(order)
        self.function, self.weights = function, weights
        self.names = list(weights)

    def init(self, rng):
        return {name: np.asarray(w) for name, w in self.weights.items()}

    def parameters(self, variable, x, z, weights):
        return self.function(variable.name, x, z, weights)


class Inverted(Recognition):
    """Inverts the model's layers with affine functions (doubly stochastic paper, section 3).

    The variables are drawn in the reverse of the model's order. Each depends on the variables of
    its Markov blanket that are known by then: the observed or drawn variables that depend on it in
    the model, and their other parents if already drawn. With ``autoregressive``, each unit of a
    Bernoulli variable also depends on the units before it.
    """

    def __init__(
        self,
        joint: Joint,
        weights: Mapping[str, np.ndarray] | None = None,
        autoregressive: bool = False,
    ):
        self.weights = weights
        self.inputs: dict[str, list[str]] = {}
        names = joint.names
        touching = {
            name: [t for t in joint.terms if name in t.depends_on and t.name != name]
            for name in names
        }
        order: list[str] = []
        while len(order) < len(names):
            waiting = [name for name in names if name not in order]
            name = next(
                name for name in waiting if not {t.name for t in touching[name]} & set(waiting)
            )
            known = [*joint.observed, *order]
            blanket = {name for t in touching[name] for name in (t.name, *t.depends_on)}
            self.inputs[name] = [other for other in known if other in blanket]
            order.append(name)
        super().__init__([joint.variables[names.index(name)] for name in order], autoregressive)
        self.widths = {name: _width(name, value) for name, value in joint.observed.items()}
        for v in self.order:
            one_hot = self.families[v.name]
            values = one_hot.outputs if isinstance(one_hot, Categorical) else 1
            self.widths[v.name] = math.prod(v.shape) * values
        self.shapes: dict[str, tuple[int, ...]] = {}
        for v in self.order:
            n_out = math.prod(v.shape) * self.families[v.name].outputs
            for name in self.inputs[v.name]:
                self.shapes[f"{v.name} from {name}"] = (self.widths[name], n_out)
            self.shapes[v.name] = (n_out,)
            if isinstance(self.families[v.name], AutoregressiveBernoulli):
                self.shapes[_within(v)] = (n_out, n_out)
        self.names = list(self.shapes)
        given = self.shapes if weights is None else {n: np.shape(w) for n, w in weights.items()}
        if given != self.shapes:
            raise ValueError(
                f"weights= has the shapes {given}, but the network needs {self.shapes}."
            )

    def init(self, rng):
        if self.weights is not None:
            return {name: np.asarray(self.weights[name]) for name in self.names}
        weights = {}
        for name, shape in self.shapes.items():
            sd = math.sqrt(2 / sum(shape)) if " from " in name else 0  # Glorot and Bengio 2010
            weights[name] = sd * rng.normal(size=shape)
        return weights

    def parameters(self, variable, x, z, weights):
        family, known = self.families[variable.name], x | z
        total = weights[variable.name][None, None]
        for name in self.inputs[variable.name]:
            value = known[name]
            if name in self.families and isinstance(self.families[name], Categorical):
                value = pt.eq(value[..., None], np.arange(self.families[name].outputs))
            once = value.type.shape[0] == 1  # data, the same for all draws
            rows = value.reshape((-1, self.widths[name])).astype(total.dtype)
            product = rows @ weights[f"{variable.name} from {name}"]
            total = total + (product[None] if once else product.reshape((*_lead(value), -1)))
        if isinstance(family, Normal):
            both = total.reshape((*_lead(total), 2, *variable.shape))
            return both[:, :, 0], both[:, :, 1]
        shape = variable.shape + ((family.outputs,) if isinstance(family, Categorical) else ())
        logits = total.reshape((*_lead(total), *shape))
        if isinstance(family, AutoregressiveBernoulli):
            return logits, weights[_within(variable)]
        return logits


def _within(variable: LatentVariable) -> str:
    """Return the name of the links between a variable's units."""
    return f"{variable.name} within"


def _lead(value: TensorVariable) -> list:
    """Return the lengths of the axes (draws or 1, rows), as numbers if they are known."""
    return [value.shape[a] if n is None else n for a, n in enumerate(value.type.shape[:2])]
