"""What `help` shows for a sampler: its own arguments and errors, combined with the shared ones."""

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

COMMON_PARAMETERS = """\
vars : list of variables, optional
    Random or value variables to sample; default: all of the model's.
step_size : float, Schedule, callable or "auto", default "auto"
    Step size per update. "auto" (momentum samplers and `SGLD`) adapts it to the model, together
    with all other arguments that are "auto", when the step is made. Otherwise a positive number,
    `PolynomialDecay`, `BlockDecay`, `Cyclical`, or any callable of the update number (from 0,
    tuning included). For samplers with momentum it is a time, and an update moves an element by
    about that much. `SGLD`, `PSGLD` and `SGRLD` take the e of their equations, in units of theta^2,
    theta^2 / G and the expanded theta. With an adapted metric a number is a step size in
    z = L^-1 theta, in which all posterior sds are about 1.
batch_size : int, "auto" or None, default "auto"
    Rows per batch, for an ordinary model. None: all data at each update, or the batches that the
    model itself makes with `pm.Minibatch`. "auto" means None unless the step is adapted; then it is
    about two rows per parameter, or all rows if there are up to 2000 of them or 8 batches; with
    ``latents`` it is 128 rows.
adaptation : {"auto", "dense", "diag"}, Adapted, step, DataTree or None, default "auto"
    The metric L to adapt. "auto": none with a given ``step_size``; otherwise dense up to 2000
    parameters and diagonal for more; but with more than 1000 parameters and local variables, one
    scale for each element of the local variables and a dense metric for the others. Passing another
    step of the same model and data, or its attribute ``adapted``, reuses what that step has found,
    without a warm-up. A step of the same model and other data (yesterday's), or a result of
    `sample` with ``store_adaptation=True`` and a dense metric, provides its metric and step size;
    only the anchor, row weights and noise are estimated again.
gradient : {"auto", "plain", "control_variate"}, default "auto"
    Whether an adapted step takes a batch's gradient alone, or adds the exact gradient at an anchor
    to the batch's estimate of the change from there: two gradients per update with far less noise.
    "auto": with a control variate if there are batches and the step has all variables.
target_bias : float, default 0.05
    Tolerated relative error of a posterior sd, for which the step size is adapted.
minibatch_dim : str, optional
    The dim along which the data is sliced into batches; needed only if several dims of an observed
    variable qualify. Without it, observed variables with different rows share the batches.
latents : Gibbs or another `Latents`, optional
    How the latent variables of each row are integrated out of the gradient. With a number as
    ``step_size`` it requires ``batch_size``; `pm.sample` then needs ``model=step.model``, the model
    without them.
local : "auto", list of str or None, default "auto"
    Variables with an element (or row) for each group of rows, such as ``alpha`` in
    ``alpha[group_of_row]``, that move only with their groups' rows: the cost of an update then does
    not depend on the number of groups. "auto": those with at least 500 groups, and more groups than
    rows in a batch, if the model allows it; for an adapted step, if the model has more than 1000
    parameters. Needs batches of rows; `SGRLD` moves all elements at every update.
batches : {"auto", "rows", "groups"}, default "auto"
    What batches are made of: random rows; or whole groups of the local variables, with about
    ``batch_size`` rows together (a larger group comes in parts), whose own gradients then have no
    minibatch noise. The groups of several local variables must be nested, and all rows in memory.
    "auto": whole groups if an adapted step has local variables with several elements for each group
    (an intercept and a slope, say), and the groups are nested, in memory, and small enough that a
    batch has four of them; otherwise rows.
thin : int or "auto", default "auto"
    Updates per recorded draw, all in one compiled call. "auto": for an adapted step, enough that
    draws are nearly independent; otherwise 1.
replacement : bool or "auto", default "auto"
    True: draw rows independently (rows of ``data`` from successive shuffle windows). False: in
    shuffled epochs, each row once. "auto" is what suits the sampler best: independent rows for
    thermostats (`SGNHT`, `SGNHT_S`, `MSGNHT_E`, `MSGNHT_S`, `Groups` with one of them), which
    mistake noise that cancels over an epoch for heat, and for adapted steps (except for ``data``
    with a control variate); shuffled epochs for the others. `pm.Minibatch` draws independent rows
    itself.
updates_per_batch : int, default 1
    Consecutive updates that use the same batch. More than one saves what is done once per batch,
    such as reading its rows, but the noise of the gradient accumulates over them: its variance is
    that of as many updates with independent batches, times their number.
self_check : bool, default True
    Check at construction that the likelihoods of disjoint batches add up to that of all rows.
data : dict, iterable or StreamedData, optional
    Data that stays on disk: a source of rows for each of the model's `pm.Data` containers that
    hold rows, as in ``{"X": memmap, "y": memmap}``. The containers hold a few rows as
    placeholders.
model : pymc.Model, optional
    Default: the model on the context stack.
rng : int or numpy.random.Generator, optional
    `pm.sample` replaces it with each chain's own generator.
initial_point : dict, optional
    Point at which the compiled updates are tried out; default: the model's initial point.
compile_kwargs : dict, optional
    For `pytensor.function`: ``{"mode": "JAX"}``, ``{"mode": "NUMBA"}``, ... The `backend=` and
    `compile_kwargs=` of `pm.sample` do not affect a step that exists already.
blocked : bool, default True
    One step for all variables; False: one step per variable."""

TEMPERATURE = """\
temperature : float, default 1
    T > 0: the draws are from posterior^(1 / T), with the density with respect to the variables on
    their own scale. T < 1 ("cold") concentrates them, T > 1 spreads them. It multiplies the
    variance of the injected noise and, with momentum, the kinetic energy, so that a step size is
    about as good at any temperature. Values other than 1 need a number or schedule as
    ``step_size``."""

COMMON_RAISES = """\
TypeError
    For an argument that the sampler does not have, for a ``step_size`` that is not "auto", a
    number, schedule or callable, and if there is no model.
ValueError
    For a step size, ``thin``, ``batch_size`` or hyperparameter out of its range; for a variable
    that is discrete or not in the model; for a model or ``data`` that cannot be sliced into
    batches. The message names the argument or variable.
pymc.exceptions.SamplingError
    If the log posterior or its gradient is not finite at the initial point, or the warm-up of an
    adapted step diverges."""

NOT_OF_GROUPS = {"vars", "step_size", "adaptation", "gradient", "target_bias"}
"""Shared parameters that `Groups` does not have, because variables and step sizes belong to each
group and are not adapted."""


def describe(cls: Any, constructor: Callable) -> None:
    """Give a sampler's class its signature and fill in its docstring.

    ``constructor`` has the arguments that all samplers share. ``{common}`` stands for their
    descriptions, ``{batches}`` for those that `Groups` has, ``{raises}`` for the shared errors,
    ``{equations}`` for the module docstring after its first line.
    """
    own = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default)
        for f in fields(cls.algorithm_class)
    ]
    common = inspect.signature(constructor).parameters
    shared = [p for p in common.values() if p.name not in ("self", "hyperparameters")]
    cls.__signature__ = inspect.Signature(shared[:2] + own + shared[2:])
    if cls.__doc__:
        doc = inspect.cleandoc(cls.__doc__)  # Python 3.13 has removed the indentation already
        doc = doc.replace("{common}", COMMON_PARAMETERS)
        doc = doc.replace("{temperature}", TEMPERATURE)
        doc = doc.replace("{batches}", _without(COMMON_PARAMETERS, NOT_OF_GROUPS))
        doc = doc.replace("{raises}", COMMON_RAISES)
        if "{equations}" in doc:
            module = inspect.getdoc(sys.modules[cls.__module__]) or ""
            doc = doc.replace("{equations}", module.partition("\n\n")[2])
        cls.__doc__ = doc


def _without(parameters: str, names: set[str]) -> str:
    """Leave out some parameters, each a line that is not indented and those after it."""
    each = re.split(r"\n(?=\S)", parameters)
    return "\n".join(text for text in each if text.partition(" : ")[0] not in names)
