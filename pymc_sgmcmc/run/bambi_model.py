"""`sample` for a model of Bambi, whose own `fit` makes the intercept that of the formula."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

from pymc_sgmcmc.run.other_arguments import of_pymc_sample
from pymc_sgmcmc.run.pymc_sample import pymc_sample_replaced


def is_bambi(model: Any) -> bool:
    """Whether this is a model of Bambi, which need not be installed."""
    return type(model).__module__.split(".")[0] == "bambi" and hasattr(model, "fit")


def fitting_bambi[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Make `sample` run inside the `fit` of a Bambi model that it is given."""
    known = list(signature(function).parameters)

    @wraps(function)
    def fitting(*args: P.args, **kwargs: P.kwargs) -> R:
        model: Any = kwargs.get("model")
        if not is_bambi(model):
            return function(*args, **kwargs)
        given = {"draws": args[0] if args else None, **kwargs}
        del given["model"]

        def of_fit(**passed: Any) -> R:
            kept, _ = of_pymc_sample(passed, given, known)
            return function(**kept, **given)  # type: ignore[arg-type, call-arg]

        with pymc_sample_replaced(of_fit):
            return model.fit()

    return fitting
