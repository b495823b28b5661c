"""`instead_of_nuts`: `sample` runs where other libraries call `pm.sample`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

from xarray import DataTree

from pymc_sgmcmc.run.pymc_sample import pymc_sample_replaced
from pymc_sgmcmc.run.unknown_arguments import instead_of, of_pymc_sample
from pymc_sgmcmc.sampling import sample

_log = logging.getLogger("pymc.sgmcmc")


@contextmanager
def instead_of_nuts(**arguments: Any) -> Iterator[None]:
    """Run `sample` wherever `pm.sample` is called inside a ``with`` block.

    This is for libraries that build a model and sample it in one method, such as ``model.fit()`` of
    Bambi and PyMC-Marketing and the experiments of CausalPy.

    Parameters
    ----------
    **arguments
        Arguments of `sample`, such as ``ess=400``. They take the place of those that the library
        passes. With ``ess``, ``max_passes`` or ``max_seconds`` the library's ``draws`` is not used.

    Raises
    ------
    TypeError
        For an argument that `sample` does not have: at once if it is given here, when the library
        samples if it comes from there.

    Notes
    -----
    What the library passes is passed on (``model``, ``var_names``, ``random_seed``, ``chains``,
    ``draws``, ``idata_kwargs`` and so on), except for what is meant for NUTS: ``tune``, ``init``,
    ``n_init``, ``nuts``, ``nuts_sampler``, ``target_accept`` and the like. A message names what is
    not used.

    Calls with ``step=`` and calls in other threads run `pm.sample` itself, which is restored when
    the block is left, also by an exception. A function imported with ``from pymc import sample`` is
    not replaced.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> def fit():  # of a library
    ...     with pm.Model():
    ...         mu = pm.Normal("mu", 0, 10)
    ...         pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...         return pm.sample(draws=1000, tune=1000, target_accept=0.9)
    >>> with sgm.instead_of_nuts(draws=60, chains=2, random_seed=1, quiet=True):
    ...     idata = fit()
    >>> idata.posterior["mu"].shape
    (2, 60)
    """
    known = list(signature(sample).parameters)
    for name in arguments:
        if name not in known:
            alternative = instead_of(name, known)
            raise TypeError(f"sgm.instead_of_nuts has no argument '{name}'{alternative}")

    def sample_instead(**passed: Any) -> DataTree:
        kept, unused = of_pymc_sample(passed, arguments, known)
        if unused:
            _log.info(
                "sgm.sample runs instead of NUTS. These arguments are not used: "
                f"{', '.join(unused)}."
            )
        return sample(**kept, **arguments)

    with pymc_sample_replaced(sample_instead):
        yield
