"""What `help` shows of a sampler: its own arguments among those that all samplers share."""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import fields
from typing import Any

COMMON_PARAMETERS = """\
vars : list of variables, optional
    Random or value variables to sample; default: all of the model's.
step_size : float, schedule or callable
    Step size of an update: a positive number, `PolynomialDecay`, `BlockDecay`, `Cyclical`, or any
    callable of the update number (from 0, tuning included).
batch_size : int, optional
    Rows a batch, for an ordinary model. Default: all data at each update, or the batches that
    the model itself makes with `pm.Minibatch`.
minibatch_dim : str, optional
    The dim to cut into batches; found by itself where only one can be meant.
latents : Gibbs or another `Latents`, optional
    How the latent variables of each row are integrated out of the gradient. It needs
    ``batch_size``; `pm.sample` then needs ``model=step.model``, the model without them.
thin : int, default 1
    Updates for each recorded draw, all in one compiled call.
replacement : bool, default False
    Draw rows independently instead of in shuffled epochs.
self_check : bool, default True
    Check at construction that the likelihoods of disjoint batches add up to that of all rows.
data : dict, iterable or StreamedData, optional
    Data that stays on disk: a source of rows for each of the model's `pm.Data` containers with a
    row for each datum, as in ``{"X": memmap, "y": memmap}``. The containers hold a few rows as
    placeholders.
model : pymc.Model, optional
    Default: the model on the context stack.
rng : int or numpy.random.Generator, optional
    `pm.sample` replaces it by each chain's own.
initial_point : dict, optional
    Point at which the compiled updates are tried out; default: the model's.
compile_kwargs : dict, optional
    For `pytensor.function`: ``{"mode": "JAX"}``, ``{"mode": "NUMBA"}``, ... The `backend=` and
    `compile_kwargs=` of `pm.sample` do not reach a step that exists already.
blocked : bool, default True
    One step for all variables; False: one for each."""


def describe(cls: Any, constructor: Callable) -> None:
    """Give a sampler's class its signature, and fill in its docstring.

    Parameters
    ----------
    cls : class
        Its `algorithm_class` has the arguments of its own.
    constructor : callable
        Has the arguments that all samplers share, ``vars`` first.
    """
    own = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default)
        for f in fields(cls.algorithm_class)
    ]
    common = inspect.signature(constructor).parameters
    shared = [p for p in common.values() if p.name not in ("self", "hyperparameters")]
    cls.__signature__ = inspect.Signature(shared[:2] + own + shared[2:])
    if cls.__doc__:
        common_doc = textwrap.indent(COMMON_PARAMETERS, "    ").lstrip()
        batches_doc = common_doc[common_doc.index("batch_size :") :]
        cls.__doc__ = cls.__doc__.replace("{common}", common_doc)
        cls.__doc__ = cls.__doc__.replace("{batches}", batches_doc)
