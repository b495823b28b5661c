"""Checks of arguments: whole numbers, real numbers, and True or False.

NumPy scalars and zero-dimensional arrays count as numbers, like Python's own; True does not.
"""

import numbers
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

LARGEST = int(np.iinfo(np.int64).max)
"""Largest number of updates or draws, which are counted in 64 bits."""


LONGEST = 80
"""Largest number of characters of a value shown in a message."""


def shown(value: Any) -> str:
    """Return a value for a message: its repr on one line, or its type if that is too long."""
    text = repr(value)
    return text if len(text) <= LONGEST and "\n" not in text else f"<{type(value).__name__}>"


def whole_number(
    name: str,
    value: Any,
    least: int,
    most: int = LARGEST,
    *,
    unit: str = "",
    most_is: str = "",
    remedy: str = "",
) -> int:
    """Return a value as a whole number from ``least`` to ``most``, or raise an error naming it.

    ``unit`` says what is counted, and ``most_is`` what the upper bound stands for.
    """
    try:
        number = None if isinstance(value, bool | np.bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        bounds = f", at least {least}"
        if most_is or (number is not None and number > most):
            bounds = f" between {least} and {most_is + ', ' if most_is else ''}{most}"
        of = f" of {unit}" if unit else ""
        end = f": {remedy}" if remedy else "."
        raise ValueError(f"{name}={shown(value)} must be a whole number{of}{bounds}{end}")
    return number


def as_float(value: Any) -> float | None:
    """Return a real number as a float; None for anything else, such as True, "1" and 1j."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, numbers.Real):
        value = np.asarray(value)
        if value.ndim or value.dtype.kind not in "iuf":
            return None
    try:
        return float(value)
    except OverflowError:
        return None


def real_number(
    name: str, value: Any, what: str, fits: Callable[[float], bool], remedy: str = ""
) -> float:
    """Return a value as a float with a required property, or raise an error naming it.

    ``what`` describes the property and ``fits`` tests it; ``fits`` is not called with NaN.
    """
    number = as_float(value)
    if number is None or np.isnan(number) or not fits(number):
        raise ValueError(f"{name} must be {what}, got {shown(value)}. {remedy}".rstrip())
    return number


def positive_number(name: str, value: Any, remedy: str = "") -> float:
    """Return a positive finite number, or raise an error: see `real_number`."""
    what = "a positive finite number"
    return real_number(name, value, what, lambda x: 0 < x < np.inf, remedy)


def nonnegative_number(name: str, value: Any, remedy: str = "") -> float:
    """Return a finite number >= 0, or raise an error: see `real_number`."""
    return real_number(name, value, "a finite number >= 0", lambda x: 0 <= x < np.inf, remedy)


def true_or_false(name: str, value: Any) -> bool:
    """Return True or False, or raise an error that names the argument."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind != "b":
        raise ValueError(f"{name}={shown(value)} must be True or False.")
    return bool(array)


def is_auto(value: Any) -> bool:
    """Whether an argument is the string "auto"; arrays are not compared."""
    return isinstance(value, str) and value == "auto"
