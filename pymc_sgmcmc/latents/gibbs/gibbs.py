r"""Gibbs sampling of latent variables of rows, with full conditionals derived from the model.

For each row of a batch, independently, some burn-in sweeps and then one sweep per draw go through
the units (elements) of the latent variables and draw

    z_j ~ p(z_j | z_-j, x, theta),

proportional to the joint density (doubly stochastic paper, eq 15 for sigmoid belief networks). The
draws give the gradient of eq 5. For each batch the Gibbs chains start again from the prior, since
the z of the last batch's rows are of no use for other rows; persistent chains each start where they
ended when their row was last in a batch, with the z of all rows in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.algorithm import State, Tensors
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.latents.gibbs import persistent_chains
from pymc_sgmcmc.latents.gibbs.conditionals import Binary, Enumerated, Move, boundary, conditional
from pymc_sgmcmc.latents.gibbs.continuous import Continuous
from pymc_sgmcmc.latents.gibbs.simplexes import Simplexes
from pymc_sgmcmc.latents.joint import Joint, LatentDraws, Latents, LatentVariable
from pymc_sgmcmc.latents.scan import strict_scan
from pymc_sgmcmc.noise import NoiseStream
from pymc_sgmcmc.number_checks import true_or_false, whole_number

CUSTOM = CustomDistRV, CustomSymbolicDistRV
"""Distributions whose log probability users write themselves."""
MOST_CUT = 0.01
"""Share of draws at an end of a support, beyond which the prior continues, that gives a warning."""

type Hook = Callable[[dict[str, TensorVariable], NoiseStream], TensorVariable]


class Gibbs(Latents):
    """Integrate out latent variables of rows by Gibbs sampling.

    Discrete variables with few values (Bernoulli, Categorical, DiscreteUniform and Binomial with
    constant parameters) are drawn from their full conditionals by enumeration. Continuous ones are
    updated by a Metropolis step whose proposal matches slope and curvature of the full
    conditional's logarithm. If the full conditional is normal, Gamma (for a positive variable),
    Beta (in the unit interval) or Dirichlet (on a simplex), the proposal is the full conditional
    itself.

    Parameters
    ----------
    vars : list of random variables or names
        Free variables of the model whose first axis is the observation dim, in the order in which
        a sweep draws them.
    n_samples : int, default 5
        Draws per row and gradient, from consecutive sweeps.
    burn_in : int, default 5
        Sweeps before the first draw. For each gradient new chains start at draws from the prior; to
        the extent that they still depend on their start, the gradient is biased.
    support : dict, optional
        Values that a discrete variable can take (variable or name: sequence), for distributions
        that do not show them, such as `pm.CustomDist` and `pm.Poisson`. For a distribution with
        infinitely many values, pass those that the posterior reaches: for PyMC's own distributions
        there is a warning if more than 1% of the draws are at an end beyond which the prior
        continues.
    conditional : dict, optional
        Functions that draw a variable instead of the derived conditional (variable or name:
        function). A function takes a dict of the current values by name (latent variables, observed
        variables, parameters; rows, if any, along the first axis) and a `NoiseStream`, and returns
        a draw of all units of the variable, shape (rows, ...), as PyTensor expressions.
    persistent : bool, default False
        Start each row's chain where it ended when the row was last in a batch, instead of at a draw
        from the prior, where only its first visit starts. The bias of a short burn-in then comes
        only from the change of theta between two visits. The last z of all rows is part of the
        state of each sampling chain: one byte per row and unit where the support has less than 128
        values.

    Raises
    ------
    ValueError
        For ``n_samples`` below 1, ``burn_in`` below 0, ``persistent`` other than True or False, and
        names in ``support`` or ``conditional`` that are not in ``vars``. When a step is made: for a
        variable that the model does not have or that is not local to the rows, for a discrete one
        whose possible values are unknown, and for ``persistent=True`` with streamed rows.

    Notes
    -----
    The statistic ``latent_moves`` is the mean proportion of units that a sweep changes; with
    ``support`` there is also ``latent_cut``, the share of draws at an end of a support beyond which
    the prior continues.

    References
    ----------
    C. Du, J. Zhu and B. Zhang (2015), Learning deep generative models with doubly stochastic MCMC,
    arXiv:1506.04557, section 2.2, eq 3 and 5, and appendix A.1.

    Examples
    --------
    A mixture of two normal distributions, with the component of each datum as latent variable:

    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> y = np.concatenate([np.linspace(-3, -1, 50), np.linspace(2, 4, 50)])
    >>> with pm.Model(coords={"obs": range(100)}):
    ...     centre = pm.Normal("centre", [-1, 1], 3)
    ...     z = pm.Bernoulli("z", 0.5, dims="obs")
    ...     y = pm.Normal("y", centre[z], 1, observed=y, dims="obs")
    ...     step = sgm.MSGNHT_S(
    ...         step_size=0.02, batch_size=20, latents=sgm.Gibbs([z]),
    ...         compile_kwargs={"mode": "JAX"},
    ...     )
    >>> step.latents
    Gibbs([z], n_samples=5, burn_in=5)
    >>> [v.name for v in step.vars]
    ['centre']
    """

    def __init__(
        self,
        vars,
        n_samples: int = 5,
        burn_in: int = 5,
        support: Mapping[Any, Sequence[int]] | None = None,
        conditional: Mapping[Any, Hook] | None = None,
        persistent: bool = False,
    ):
        super().__init__(vars, n_samples)
        self.burn_in = whole_number("burn_in", burn_in, 0)
        self.persistent = true_or_false("persistent", persistent)
        self.support = _by_name("support", support, self.names)
        for name, values in self.support.items():
            _check_support(name, values)
        self.conditional = _by_name("conditional", conditional, self.names)
        for name, function in self.conditional.items():
            if not callable(function):
                raise ValueError(
                    f"conditional={{'{name}': {function!r}}}: pass a function that draws '{name}'."
                )

    def check(self, joint: Joint) -> None:
        for variable in joint.variables:
            unknown = variable.is_discrete and variable.support is None
            if unknown and variable.name not in self.conditional:
                raise ValueError(
                    f"The distribution of the latent variable '{variable.name}' does not show "
                    f"which values it can take. Pass support={{'{variable.name}': [0, 1, ...]}} "
                    f"or conditional={{'{variable.name}': function}} to Gibbs."
                )

    @property
    def statistics(self):
        return ("latent_moves", "latent_cut") if self.support else ("latent_moves",)

    def burn_in_warning(self, diagnostics):
        share = diagnostics.get("latent_cut", 0.0)
        if not share > MOST_CUT:
            return None
        listed = " or ".join(f"'{name}'" for name in self.support)
        return (
            f"{share:.1%} of the draws of {listed} are at an end of support=, beyond which the "
            "prior has values too: the posterior is cut there. Pass more values."
        )

    @property
    def state_names(self):
        return persistent_chains.STATE_NAMES if self.persistent else ()

    def init(self, joint, rng):
        return persistent_chains.initial_state(joint) if self.persistent else {}

    def draw(self, joint: Joint, state: State, stream: NoiseStream) -> LatentDraws:
        start = joint.draw_prior(stream)
        new_rows: TensorVariable | None = None
        if self.persistent:
            start, new_rows = persistent_chains.continued(joint, state, start)
        n_climbs = (self.burn_in + 1) // 2
        n_sweeps = self.burn_in + self.n_samples
        draws = self.sweeps(joint, start, n_sweeps, stream, n_climbs, new_rows)
        if self.persistent:
            state = persistent_chains.with_ends(joint, state, [d[-1] for d in draws])
        chains = [
            pt.concatenate([first[None], d])[self.burn_in :]
            for d, first in zip(draws, start, strict=True)
        ]
        moves = [pt.neq(c[1:], c[:-1]).mean(dtype=pytensor.config.floatX) for c in chains]
        sizes = np.array([np.prod(v.shape, dtype=int) for v in joint.variables])
        moved = pt.add(*(m * w for m, w in zip(moves, sizes / sizes.sum(), strict=True)), 0.0)
        kept = [d[self.burn_in :] for d in draws]
        diagnostics = [moved, self._cut(joint, kept)] if self.support else [moved]
        return LatentDraws(kept, None, state, diagnostics)

    def _cut(self, joint: Joint, draws: Tensors) -> TensorVariable:
        """Return the largest share of a variable's draws at ends beyond which its prior continues.

        A log probability that users write themselves is evaluated only at the values of its
        support, because it may be a table.
        """
        priors = {term.name: term.logp for term in joint.terms}
        shares = [pt.constant(0.0)]
        for i, v in enumerate(joint.variables):
            if v.name not in self.support or isinstance(v.batch_rv.owner.op, CUSTOM):
                continue
            assert v.support is not None
            share = pt.constant(0.0)
            for end, beyond in ((v.support.min(), -1), (v.support.max(), 1)):
                values = [d[-1] for d in draws]
                values[i] = pt.full_like(values[i], int(end) + beyond)
                [log_p] = joint.evaluate([priors[v.name]], values)
                goes_on = pt.shape_padright(log_p > -np.inf, v.value.ndim - log_p.ndim)
                share += pt.mean(pt.eq(draws[i], end) & goes_on)
            shares.append(share)
        return reduce(pt.maximum, shares).astype(pytensor.config.floatX)

    def sweeps(
        self,
        joint: Joint,
        start: Tensors,
        n_sweeps: int,
        stream: NoiseStream,
        n_climbs: int = 0,
        climbing_rows: TensorVariable | None = None,
    ) -> Tensors:
        """Run sweeps and return their draws, one entry per variable, shape (sweeps, rows, ...).

        In the first ``n_climbs`` sweeps the continuous variables of ``climbing_rows`` (shape
        (rows,); None: all rows) ascend instead.
        """
        placeholders = [v.value for v in joint.variables]
        moves = [(i, m) for i, v in enumerate(joint.variables) for m in self._moves(joint, v)]
        # Whatever does not depend on z is computed once, outside the sweeps.
        each_sweep = [move.each_sweep for _, move in moves]
        outside = boundary(placeholders, [e for own in each_sweep for e in own])
        copies = list(dict.fromkeys(move.copies for _, move in moves))
        given = {k: joint.evaluate(outside, copies=k) for k in copies}
        once = [joint.evaluate(move.once) for _, move in moves]
        some_rows = [] if climbing_rows is None else [climbing_rows]

        def sweep(climbing, *args):
            take = iter(args).__next__
            z = [take() for _ in joint.variables]
            inner = NoiseStream(take())
            for _ in some_rows:
                climbing = climbing & take()
            given = {k: [take() for _ in outside] for k in copies}
            for (i, move), own_each, own_once in zip(moves, each_sweep, once, strict=True):
                tiled = [pt.concatenate([v] * move.copies) if move.copies > 1 else v for v in z]
                replace = dict(
                    zip([*outside, *placeholders], [*given[move.copies], *tiled], strict=True)
                )
                now = substitute(own_each, replace)
                drawn = move.sweep(z[i], [take() for _ in own_once], now, inner, climbing)
                z[i] = pt.specify_shape(drawn, z[i].type.shape).astype(z[i].dtype)
            return [*z, inner.rng]

        *draws, stream.rng = strict_scan(
            sweep,
            sequences=[pt.constant(np.arange(n_sweeps) < n_climbs)],
            outputs_info=[*start, stream.rng],
            non_sequences=[
                *some_rows,
                *(g for values in given.values() for g in values),
                *(c for own in once for c in own),
            ],
            n_steps=n_sweeps,
        )
        return draws

    def _moves(self, joint: Joint, variable: LatentVariable) -> list[Move]:
        """Return the moves by which a sweep draws a variable, in order."""
        if variable.name in self.conditional:
            return [Given(joint, self.conditional[variable.name])]
        if not variable.is_discrete:
            by_unit = Continuous.of(joint, variable)
            return (
                [Simplexes.of(joint, variable), by_unit] if Simplexes.fits(variable) else [by_unit]
            )
        assert variable.support is not None  # `check` has raised an error otherwise
        binary = len(variable.support) == 2
        kind = Binary if binary else Enumerated
        terms = conditional(joint, variable, logistic=binary)
        return [kind(terms, variable.support, joint.n_rows)]


class Given(Move):
    """Draws a variable with a function given by the user."""

    def __init__(self, joint: Joint, function: Hook):
        self.function = function
        self.values = {
            **{v.name: v.value for v in joint.variables},
            **joint.observed,
            **joint.parameters,
        }

    @property
    def each_sweep(self) -> list[Variable]:
        return list(self.values.values())

    def sweep(self, z, once, each_sweep, stream: NoiseStream, climbing) -> TensorVariable:
        values = dict(zip(self.values, each_sweep, strict=True))
        return pt.as_tensor(self.function(values, stream))


def _check_support(name: str, values: Sequence[int]) -> None:
    support = np.asarray(values)
    whole = support.dtype.kind in "iu" and support.ndim == 1
    if not whole or len(support) < 2 or len(np.unique(support)) < len(support):
        raise ValueError(
            f"support={{'{name}': {values!r}}} must be a list of at least two different whole "
            f"numbers: all the values that '{name}' can take."
        )


def _by_name(what: str, given: Mapping[Any, Any] | None, names: list[str]) -> dict[str, Any]:
    if not isinstance(given, Mapping | None):
        raise ValueError(
            f"{what}={given!r} must be a dict with variables as keys: {{'{names[0]}': ...}}."
        )
    by_name = {getattr(var, "name", var): value for var, value in (given or {}).items()}
    for name in by_name.keys() - set(names):
        raise ValueError(
            f"{what}= has the key '{name}', which is not one of the latent variables {names}."
        )
    return by_name
