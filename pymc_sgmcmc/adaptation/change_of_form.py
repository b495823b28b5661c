"""Exceptions by which a warm-up reports that a model is better sampled in another form."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pymc_sgmcmc.gradients.flat_model import FlatModel

_changeable: ContextVar[Collection[str]] = ContextVar("what may still change", default=())


class OtherForm(Exception):
    """A warm-up found that the model is better sampled in another form."""

    def __init__(self, name: str, value: Any):
        super().__init__(f"better sampled with another {name}")
        self.found = {name: value}
        """A field of `pymc_sgmcmc.adaptation.adapted_settings.Adapted`, and its value."""
        self.passes = 0.0
        """Passes over the data of the warm-up that ended in this way."""


@contextmanager
def form_changeable(names: Collection[str]) -> Iterator[None]:
    """Let warm-ups in this block raise `OtherForm` with one of the given names."""
    before = _changeable.set(names)
    try:
        yield
    finally:
        _changeable.reset(before)


def form_may_change(name: str) -> bool:
    """Whether warm-ups may raise `OtherForm` with this name."""
    return name in _changeable.get()


def form_is_settled() -> bool:
    """Whether no warm-up may raise `OtherForm`."""
    return not _changeable.get()


def take_equally_spaced_points(gradients: FlatModel) -> None:
    """Raise `OtherForm` if a fault of gradients may be that of the points of integration.

    Far from a group's mode a likelihood may be rounded to 0, and its gradient 0 times infinity:
    equally spaced points leave such places out. They are also constant, and the gradient contains
    what happens where the density of a row has a kink.
    """
    if "equally_spaced" in gradients.other_integrals and form_may_change("equally_spaced"):
        raise OtherForm("equally_spaced", True)
