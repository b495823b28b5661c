"""The gradient of a model whose latent variables of rows are integrated out by Monte Carlo."""

from dataclasses import dataclass, field

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType
from pymc.model.core import Model
from pymc.vartypes import discrete_types
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, explicit_graph_inputs
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.gradients.arrays import evaluate, refuse_nan
from pymc_sgmcmc.gradients.batch_terms import batched_terms
from pymc_sgmcmc.gradients.differentiate import before_gradients, gradients_of
from pymc_sgmcmc.gradients.full_terms import full_terms
from pymc_sgmcmc.gradients.model_gradient import explicit_data
from pymc_sgmcmc.gradients.placeholders import check_covered, filled, fitted_to, refuse_whole
from pymc_sgmcmc.gradients.pm_minibatch import uses_minibatch
from pymc_sgmcmc.gradients.rows_in_batches import find_row_axis, local_shape
from pymc_sgmcmc.gradients.source import GradientSource, Rows, check_batch_size
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.latents.joint import Joint, Latents, LatentVariable, LocalTerm, find_latents
from pymc_sgmcmc.latents.latent_check import check_latent_terms, refuse_moving_support


@dataclass(frozen=True)
class LatentGradientSource(GradientSource):
    """The mean gradient over draws of the batch's latent variables, which integrates these out.

    The likelihood is N / n times the weighted sum over rows and draws of log p(x, z | theta), with
    the draws and weights as inputs.
    """

    latents: Latents = field(kw_only=True)
    joint: Joint = field(kw_only=True)
    weights: TensorVariable = field(kw_only=True)
    """Weights of each draw and row, shape (samples * n,)."""

    is_costly: bool = True
    has_latents = True

    @property
    def state_names(self):
        return self.latents.state_names

    @property
    def statistics(self):
        return self.latents.statistics

    def burn_in_warning(self, diagnostics):
        return self.latents.burn_in_warning(diagnostics)

    @property
    def determined(self):
        return [self.log_prior]

    def check_data(self):
        super().check_data()
        [rows] = self.rows
        if self.latents.persistent and rows.n_rows != self.joint.n_data:
            raise ValueError(
                f"The data have {rows.n_rows} rows now, but the Gibbs chains that are kept "
                f"(persistent=True) are those of {self.joint.n_data} rows. Make a new step."
            )

    def tables(self, rows):
        """Return none, because drawing latent variables takes far longer than fetching rows."""
        return []

    def init(self, rng):
        return self.latents.init(self.joint, rng)

    def at(self, theta, rows, constants, state, stream):
        replace = dict(zip(self.inputs, [*theta, *rows, *constants], strict=True))
        draws = self.latents.draw(self.joint.at(replace), state, stream)
        copies = self.latents.n_samples
        n = copies * self.joint.n_rows
        if draws.weights is None:
            weights = pt.full((n,), np.asarray(1 / copies, dtype=self.weights.dtype))
        else:
            weights = draws.weights.reshape((n,)).astype(self.weights.dtype)
        replace[self.weights] = disconnected_grad(weights)
        replace[self.joint.rows] = pt.tile(replace[self.joint.rows], copies)
        for variable, values in zip(self.joint.variables, draws.values, strict=True):
            flat = values.reshape((n, *variable.shape)).astype(variable.dtype)
            replace[variable.value] = disconnected_grad(flat)
        return self._evaluate(replace, draws.state, draws.diagnostics)

    def _curvature(self, v):
        """Return the joint's mean Hessian plus the covariance of its gradients (Louis 1982)."""
        copies, n_rows = self.latents.n_samples, self.joint.n_rows
        if copies < 2:
            raise ValueError(
                f"n_samples={copies} in {self.latents!r}: gamma=True needs the variance of the "
                "draws. Pass n_samples=2 or more."
            )
        of_rows = self.joint.of_rows
        # The directional derivative of each row's term is the gradient with respect to its weight
        # u.
        u = self.weights.type()
        gradients = pt.grad(pt.sum(u * of_rows), self.vars, disconnected_inputs="ignore")
        along = pt.add(*(pt.sum(g * vi) for g, vi in zip(gradients, v, strict=True)), 0.0)
        slopes = pt.grad(along, u)
        [slopes] = substitute([slopes], {u: self.weights})  # linear in u, so any value will do
        w = self.weights.reshape((copies, n_rows))
        slopes = slopes.reshape((copies, n_rows))
        deviations = (slopes - pt.sum(w * slopes, axis=0)) / (1 - pt.sum(w**2, axis=0))
        covariance = pt.sum(disconnected_grad((w * deviations).ravel()) * of_rows)
        [scale] = [r.scale for r in self.rows]
        products = pt.grad(scale * covariance, self.vars, disconnected_inputs="ignore")
        return [h + c for h, c in zip(super()._curvature(v), products, strict=True)]


@quick_graphs()
def latent_gradient_source(
    model: Model,
    global_model: Model,
    vars: list[TensorVariable],
    latents: Latents,
    *,
    batch_size: int | None,
    minibatch_dim: str | None = None,
    self_check: bool = True,
    data: StreamedData | None = None,
    start: PointType | None = None,
) -> LatentGradientSource:
    """Derive the stochastic gradient of a model with its latent variables of rows integrated out.

    ``global_model`` is the model `without_latents`, to which the value variables ``vars`` belong;
    the other arguments are those of `gradient_source`.
    """
    latent_rvs = find_latents(model, latents.vars)
    names = ", ".join(f"'{rv.name}'" for rv in latent_rvs)
    if any(uses_minibatch(model, var) for var in [*model.observed_RVs, *model.potentials]):
        raise ValueError(
            f"latents= ({names}) cannot be used with pm.Minibatch in the model: write the model "
            "with all the data, give the latent variables the observation dim, and pass "
            "batch_size=."
        )
    if batch_size is None:
        raise ValueError(
            f"latents= ({names}) needs batch_size=: the latent variables are drawn for the rows "
            "of a batch (the number of all rows is a valid batch_size)."
        )
    if data is not None and latents.persistent:
        raise ValueError(
            f"persistent=True in {latents!r} needs rows with fixed numbers, which streamed rows "
            "(data=) do not have. Leave persistent=False, or put the data into the model."
        )
    data = None if data is None else fitted_to(model, data)
    with filled(model, data):
        row_axis = find_row_axis(model, minibatch_dim, latent_rvs)
        check_batch_size(batch_size, data.n_rows if data else row_axis.length)
        source = _slice_into_batches(
            model,
            global_model,
            vars,
            latents,
            latent_rvs,
            batch_size,
            row_axis,
            self_check,
            data,
            global_model.initial_point() if start is None else start,
        )
    if data is not None:
        refuse_whole(explicit_graph_inputs([source.log_prior]), data)
    return source


def _slice_into_batches(
    model,
    global_model,
    vars,
    latents,
    latent_rvs,
    batch_size,
    row_axis,
    self_check,
    streamed,
    start,
) -> LatentGradientSource:
    names = ", ".join(f"'{rv.name}'" for rv in latent_rvs)
    for rv in latent_rvs:
        refuse_moving_support(model, rv, latent_rvs)
    placeholders = {
        rv: TensorType(rv.type.dtype, (None, *local_shape(model, rv, row_axis)))(rv.name)
        for rv in latent_rvs
    }
    free = global_model.free_RVs
    global_values = dict(zip(free, global_model.replace_rvs_by_values(free), strict=True))
    index = pt.lvector("rows")
    part = batched_terms(model, row_axis, index, placeholders, global_values, streamed)
    if streamed is not None:
        check_covered(part.sliced, streamed)
    for var in part.rest:
        for rv in set(latent_rvs) & set(ancestors([var])):
            raise ValueError(
                f"'{rv.name}' is not local to the rows, because '{var.name}' depends on it and has "
                f"no axis along {row_axis}. Leave it out of latents=."
            )
    for array in part.arrays:
        refuse_nan(array)

    kept = [v for v in part.rest if v in global_model.observed_RVs + global_model.potentials]
    prior = global_model.logp(vars=[*free, *kept])
    logps = [pt.moveaxis(term.logp, term.axis, 0) for term in part.terms]
    expressions, data = explicit_data([prior, *logps, *part.observed.values()], part.arrays)
    used = set(explicit_graph_inputs(expressions))
    k = len(logps)
    prior, logps, observed = expressions[0], expressions[1 : k + 1], expressions[k + 1 :]
    batch_rvs = clone_replace(list(part.latents.values()), data, rebuild_strict=False)
    others = [v for v in global_model.value_vars if v not in vars and v in used]
    for var in others:
        if var in ancestors(logps):
            raise ValueError(
                f"'{var.name}' is in terms whose latent variables ({names}) are integrated out, so "
                "only this step can sample it. Leave vars=None, or add it to vars."
            )
    floatX = pytensor.config.floatX
    terms = [
        LocalTerm(
            term.name,
            _simplified(logp).astype(floatX),
            frozenset(rv.name for rv, value in placeholders.items() if value in ancestors([logp])),
        )
        for term, logp in zip(part.terms, logps, strict=True)
    ]
    joint = Joint(
        variables=[
            LatentVariable(
                rv.name,
                tuple(value.type.shape[1:]),
                value.type.dtype,
                value,
                batch_rv,
                model.rvs_to_transforms[rv],
                _support(rv, latents),
            )
            for (rv, value), batch_rv in zip(placeholders.items(), batch_rvs, strict=True)
        ],
        terms=terms,
        observed=dict(zip(part.observed, observed, strict=True)),
        parameters={rv.name: value for rv, value in global_values.items()},
        rows=index,
        n_rows=int(batch_size),
        n_data=streamed.n_rows if streamed else row_axis.length,
    )
    latents.check(joint)
    used_data = [(array, v) for array, v in data.items() if v in used]
    if self_check:
        check_latent_terms(global_model, joint, used_data, row_axis, start)
    scale = pt.scalar("N/n", dtype=floatX)
    weights = pt.vector("weights", dtype=floatX)
    likelihood = scale * pt.sum(weights * joint.of_rows)
    [prior] = before_gradients([prior.astype(floatX)])
    own_start = global_model.initial_point()
    source = LatentGradientSource(
        vars=vars,
        shapes=[np.shape(own_start[v.name]) for v in vars],
        rows=[Rows(index, scale, int(batch_size), (part.axes,), streamed)],
        data=used_data,
        others=others,
        log_prior=prior,
        log_likelihood=likelihood,
        n_data=scale * batch_size,
        prior=gradients_of(prior, vars),
        likelihood=gradients_of(likelihood, vars),
        full=full_terms(model, part.rest, batch_size),
        latents=latents,
        joint=joint,
        weights=weights,
    )
    source.check_data()
    return source


def _support(rv: Variable, latents: Latents) -> np.ndarray | None:
    """Return the values that a latent variable can take, if they are given, or few and known."""
    if rv.name in latents.support:
        return np.asarray(latents.support[rv.name])
    if rv.type.dtype not in discrete_types:
        return None
    name = type(rv.owner.op).__name__
    parameters = rv.owner.inputs[2:]
    if name == "BernoulliRV":
        return np.array([0, 1])
    if name == "CategoricalRV":
        p = parameters[0]
        n = p.type.shape[-1] if p.type.shape[-1] is not None else int(evaluate(p.shape[-1])[0])
        return np.arange(n)
    known = [p for p in parameters if not _is_random(p)]
    bounds = [int(evaluate(p)[0].item()) for p in known if all(p.type.broadcastable)]
    if name == "DiscreteUniformRV" and len(bounds) == 2:
        return np.arange(bounds[0], bounds[1] + 1)
    if name in ("BinomialRV", "BetaBinomialRV") and not _is_random(parameters[0]):
        return np.arange(int(np.max(evaluate(parameters[0])[0])) + 1)
    return None


def _is_random(var: Variable) -> bool:
    """Whether a variable depends on anything other than constants."""
    return any(v.owner is None and not isinstance(v, Constant) for v in ancestors([var]))


def _simplified(logp: TensorVariable) -> TensorVariable:
    """Simplify and stabilise a log probability, without the checks of parameters."""
    return rewrite_graph(
        logp, include=("canonicalize", "stabilize", "local_remove_check_parameter")
    )
