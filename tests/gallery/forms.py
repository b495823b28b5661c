"""What a form is: a function that builds a model, and what is expected of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pymc as pm

from gallery.rows import BATCH, N

LOCAL = "an element for each row"
SPANS = "one draw of its distribution spans"
DEPENDENT = "not conditionally independent"
"""Causes that many forms share."""

type Build = Callable[[], pm.Model]


@dataclass(frozen=True)
class Accepted:
    """A model whose batches of rows have, on average, the gradient of all the data."""

    name: str
    build: Build
    dims: tuple[str | None, ...]
    """Names of the dims along which the rows lie; None where the model names none."""
    n_rows: int
    options: dict[str, Any]
    """Arguments of the gradient source."""
    new_data: Callable[[], Mapping[str, Any]] | None
    """Other rows for the model's containers, with their `coords`."""
    whole: Build | None
    """The same model on all rows, where this one is written with batches."""


@dataclass(frozen=True)
class Refused:
    """A model that cannot be cut into batches of rows."""

    name: str
    build: Build
    variable: str
    """At fault; named in the message."""
    cause: str
    """What the message says is wrong, a regular expression."""
    remedy: str
    """What the message says to do, a regular expression."""
    error: type[Exception]
    options: dict[str, Any] = field(default_factory=dict)


ACCEPTED: dict[str, Accepted] = {}
REFUSED: dict[str, Refused] = {}


def _name(build: Build) -> str:
    name = f"{build.__module__.removeprefix('gallery.')}.{build.__name__}"
    if name in ACCEPTED or name in REFUSED:
        raise ValueError(f"Two forms are called {name}.")
    return name


def accepted(
    dim: str | tuple[str | None, ...] | None = None,
    n_rows: int = N,
    *,
    batch_size: int | None = BATCH,
    minibatch_dim: str | None = None,
    new_data: Callable[[], Mapping[str, Any]] | None = None,
    whole: Build | None = None,
):
    """Say that a model's rows, ``n_rows`` along ``dim``, are cut into batches."""
    dims = dim if isinstance(dim, tuple) else (dim,)
    options = {"batch_size": batch_size, "minibatch_dim": minibatch_dim}

    def register(build: Build) -> Build:
        name = _name(build)
        ACCEPTED[name] = Accepted(name, build, dims, n_rows, options, new_data, whole)
        return build

    return register


def refused(
    variable: str,
    *,
    cause: str,
    remedy: str,
    error: type[Exception] = ValueError,
    batch_size: int | None = BATCH,
):
    """Say that a model is refused, naming ``variable``, one ``cause`` and one ``remedy``."""

    def register(build: Build) -> Build:
        name = _name(build)
        options = {"batch_size": batch_size}
        REFUSED[name] = Refused(name, build, variable, cause, remedy, error, options)
        return build

    return register
