"""`Predictions`: predictions on test data, averaged over draws while they are made."""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pymc.blocking import PointType
from pymc.model import Model, modelcontext
from xarray import Dataset

from pymc_sgmcmc.number_checks import shown, whole_number
from pymc_sgmcmc.predictions.metrics import (
    CLASSIFICATION,
    REGRESSION,
    as_classes,
    check_labels,
    looks_like_classes,
    of_classes,
    of_numbers,
    one_of,
)
from pymc_sgmcmc.predictions.predictor import Predictor, is_discrete_choice
from pymc_sgmcmc.predictions.running_average import RunningAverage, summarised

WEIGHTS = ("equal", "step_size")
"""How draws may be weighted in an average."""


GROUPS = {
    *("posterior", "sample_stats", "log_likelihood", "log_prior", "observed_data", "constant_data"),
    *("posterior_predictive", "predictions", "predictions_constant_data"),
    *("prior", "prior_predictive", "sample_stats_prior", "diagnosis", "adaptation"),
}
"""Groups that a result has or that PyMC adds to it, except those that begin with ``warmup_``."""


def _checked_name(name: Any) -> str:
    """Return a name that a further group of the result can have, or raise an error."""
    reason = None
    if not isinstance(name, str):
        reason = "must be a string"
    elif name in ("", ".", "..") or "/" in name or "\0" in name:
        reason = "cannot be the name of a group of the result, where '/' and '.' belong to paths"
    elif name in GROUPS or name.startswith("warmup_"):
        reason = "is the name of another group of the result"
    if reason is not None:
        raise ValueError(
            f"name={shown(name)} {reason}: pass another, such as name='test_predictions'."
        )
    return name


class Predictions:
    """Average predictions on test data while sampling, without keeping any draws.

    Without test data, a variable of the model itself is averaged, whose draws would take too much
    memory.

    Pass it to `sample` as ``predictions=``, with ``var_names=[]`` if no draws are to be kept, or to
    `pymc.sample` as ``callback=``. After each draw (except tuning draws) a variable of the model is
    evaluated with test data in place of the training data.

    Parameters
    ----------
    var : str
        What to predict: a deterministic of the model, or an observed variable, of which the mean or
        the probabilities of the classes (`pymc.Categorical`, `pymc.Bernoulli`) are predicted. Its
        first axis must be that of the rows. Without ``data`` it may be any variable of the model,
        of any shape.
    data : dict of arrays, optional
        Test data by the name of the `pm.Data` that it replaces, as for `pymc.set_data`; rows along
        the first axis. All data with rows that ``var`` depends on must be given. Default: none, and
        the variable is averaged as it is in the model.
    labels : array, shape (rows,) or as the predictions, optional
        True classes, from 0, or true numbers, for the metrics.
    batch_size : int, default 1000
        Rows per evaluation.
    task : {"classification", "regression"}, optional
        Which metrics to compute. Default: those of classification for the probabilities of an
        observed variable's classes, and for labels that are whole numbers if the predictions at the
        start are probabilities (rows that sum to 1, or of one class against another).
    weights : {"equal", "step_size"}, default "equal"
        Weights of draws in the average. With "step_size" each draw has its step size as weight, as
        in the averages for decreasing step sizes of Welling and Teh (2011) and of the pSGLD paper.
    monitor : str, optional
        Metric by which the best draw is kept: ``"accuracy"``,
        ``"log_likelihood"`` (default), ``"brier"``, ``"calibration_error"``; ``"rmse"``.
    name : str, optional
        Name of the group in the result of `sample`, which must not be that of another group.
        Default: "test_predictions", or "average_<var>" without test data.
    model : pymc.Model, optional
        Default: the model on the context stack.
    compile_kwargs : dict, optional
        For `pytensor.function`. Default: those of the step in `sample`.

    Attributes
    ----------
    chains : dict of RunningAverage
        The average of each chain, by its number.

    Raises
    ------
    ValueError
        For data that the model does not have, or of a different width or with NaN; for labels out
        of range or of a different length; for a variable whose first axis is not that of the rows;
        and for arguments out of their range.
    KeyError
        For a variable that the model does not have.

    Notes
    -----
    `to_dataset` describes what is averaged. Everything is kept in float64, one draw at a time, so
    the result agrees with the average over a stored trace up to rounding, and does not depend on
    how draws are made. With a ``trace`` in `sample` it is saved with each checkpoint and resumed
    with the chains; the store's own groups do not contain it, but ``sample(..., resume=True)``
    returns it. With `pymc.sample`, name one small variable in ``var_names``, which needs at least
    one.

    References
    ----------
    C. Li, C. Chen, D. Carlson and L. Carin (2016), Preconditioned stochastic gradient Langevin
    dynamics for deep neural networks, AAAI, arXiv:1512.07666: weights by step size.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(300, 2))
    >>> y = (X.sum(axis=1) > 0).astype(int)
    >>> with pm.Model() as model:
    ...     X_rows = pm.Data("X", X[:200])
    ...     w = pm.Normal("w", 0, 3, shape=2)
    ...     likelihood = pm.Bernoulli("y", logit_p=X_rows @ w, observed=y[:200])
    ...     averages = sgm.Predictions("y", data={"X": X[200:]}, labels=y[200:])
    ...     step = sgm.SGLD(step_size=0.02, batch_size=20, thin=10)
    ...     idata = sgm.sample(
    ...         100, tune=50, chains=2, step=step, predictions=averages, var_names=[],
    ...         random_seed=1, quiet=True,
    ...     )
    >>> idata.test_predictions["mean"].shape, float(idata.test_predictions["accuracy"]) > 0.9
    ((100, 2), True)

    The mean and sd of 10,000 effects, of which no draws are kept:

    >>> group = rng.integers(10_000, size=50_000)
    >>> with pm.Model(coords={"customer": range(10_000)}):
    ...     effect = pm.Normal("effect", 0, 1, dims="customer")
    ...     likelihood = pm.Normal("y", effect[group], 1, observed=rng.normal(size=50_000))
    ...     step = sgm.MSGNHT_S(step_size=0.1, batch_size=1000, thin=50)
    ...     idata = sgm.sample(
    ...         100, tune=50, chains=2, step=step, predictions=sgm.Predictions("effect"),
    ...         var_names=[], random_seed=1, quiet=True,
    ...     )
    >>> dict(idata.average_effect["sd"].sizes)
    {'customer': 10000}
    """

    def __init__(
        self,
        var: str,
        data: Mapping[str, Any] | None = None,
        labels: Any = None,
        *,
        batch_size: int = 1000,
        task: Literal["classification", "regression"] | None = None,
        weights: Literal["equal", "step_size"] = "equal",
        monitor: str | None = None,
        name: str | None = None,
        model: Model | None = None,
        compile_kwargs: dict[str, Any] | None = None,
    ):
        whole_number("batch_size", batch_size, 1, unit="rows")
        one_of("weights", weights, WEIGHTS)
        if task is not None:
            one_of("task", task, ("classification", "regression"))
        if labels is None and monitor is not None:
            raise ValueError("monitor= needs labels=, by which draws are judged.")
        if monitor is not None:
            one_of("monitor", monitor, (*CLASSIFICATION, *REGRESSION))
        model = modelcontext(model)
        if var not in model.named_vars:
            raise KeyError(f"The model has no variable '{var}'.")
        if data is None and (labels is not None or task is not None):
            raise ValueError("labels= and task= need data=, the test data of the labels.")
        default = "test_predictions" if data is not None else f"average_{var}"
        self.name = _checked_name(default if name is None else name)
        self.var, self.weights = var, weights
        self.task, self.monitor = task, monitor
        if data is None:
            self.task = "regression"
        elif task is None and is_discrete_choice(model, var):
            self.task = "classification"
        self.predictor = Predictor(model, var, data, int(batch_size))
        self.predictor.compile_kwargs = compile_kwargs
        self.labels = None if labels is None else np.asarray(labels)
        if self.labels is not None and len(self.labels) != self.predictor.n_rows:
            raise ValueError(
                f"labels has {len(self.labels)} rows, but the test data {self.predictor.n_rows}."
            )
        self.chains: dict[int, RunningAverage] = {}
        self._last: dict[int, int] = {}
        self._checked = False

    def __repr__(self):
        n_rows = self.predictor.n_rows
        return f"Predictions({self.var!r}{'' if n_rows is None else f' on {n_rows} rows'})"

    # ---- one draw ---------------------------------------------------------------------------

    def __call__(self, trace: Any, draw: Any) -> None:
        """Take a draw, as the ``callback=`` of `pymc.sample`.

        Parameters
        ----------
        trace : object
            Not used.
        draw : pymc.sampling.parallel.Draw
        """
        if draw.tuning:
            return
        if draw.chain not in self.chains or draw.draw_idx <= self._last[draw.chain]:
            self.begin_chain(draw.chain)
        self._last[draw.chain] = draw.draw_idx
        self.add(draw.chain, draw.point, draw.stats)

    def begin(self) -> None:
        """Discard all chains, because a new run begins."""
        self.chains = {}

    def begin_chain(self, chain: int) -> RunningAverage:
        """Return a new average for a chain, replacing any earlier one."""
        classes = self.task == "classification"
        monitor = None
        if self.labels is not None:
            monitor = self.monitor or ("log_likelihood" if classes else "rmse")
        metrics = None if self.labels is None else self._metrics
        self.chains[chain] = RunningAverage(metrics, classes, monitor)
        return self.chains[chain]

    def add(self, chain: int, point: PointType, stats: Any) -> None:
        """Take one draw of a chain that `begin_chain` has begun.

        ``point`` has the value variables, and ``stats`` the statistics of each step.
        """
        predictions = self.predictor(point)
        if not self._checked:
            self.check(point, predictions)
            self.chains[chain] = self.begin_chain(chain)
        if self.task == "classification":
            predictions = as_classes(predictions)
        self.chains[chain].add(predictions, self._weight(stats), point)

    def _weight(self, stats: Any) -> float:
        if self.weights == "equal":
            return 1.0
        found = [one["step_size"] for one in stats if "step_size" in one]
        if len(found) != 1:
            raise ValueError(
                "weights='step_size' needs one step with the statistic 'step_size', but there are "
                f"{len(found)}: pass weights='equal'."
            )
        return float(np.asarray(found[0]))

    # ---- checks -----------------------------------------------------------------------------

    def check(self, point: PointType, predictions: np.ndarray | None = None) -> None:
        """Choose the metrics, and raise an error for labels that do not fit the predictions.

        ``predictions`` are those at the point, if known.
        """
        p = self.predictor(point) if predictions is None else predictions
        if self.task is None:
            self.task = "classification" if looks_like_classes(p, self.labels) else "regression"
        if self.task == "classification":
            if p.ndim not in (1, 2):
                raise ValueError(
                    "task='classification' needs probabilities of shape (rows,) or (rows, "
                    f"classes), but '{self.var}' has the shape {p.shape}."
                )
            p = as_classes(p)
            if not np.allclose(p.sum(axis=1), 1, atol=1e-3):
                raise ValueError(
                    f"task='classification' needs one class for each row, but the probabilities of "
                    f"'{self.var}' on the test data, of shape {p.shape}, do not sum to 1 in each "
                    "row: pass task='regression', which judges each of them by itself."
                )
        if self.labels is not None:
            check_labels(self.labels, p, self.task, self.var)
            names = CLASSIFICATION if self.task == "classification" else REGRESSION
            if self.monitor is not None:
                one_of("monitor", self.monitor, names)
        self._checked = True

    def _metrics(self, predictions: np.ndarray) -> dict[str, float]:
        assert self.labels is not None
        if self.task == "classification":
            return of_classes(predictions, self.labels.astype(np.int64))
        return of_numbers(predictions, self.labels)

    # ---- saved state ------------------------------------------------------------------------

    @property
    def digest(self) -> dict[str, str]:
        """Digests of what the averages depend on, to recognise averages of other data."""
        arrays = {f"data['{key}']": value for key, value in self.predictor.data.items()}
        if self.labels is not None:
            arrays["labels"] = self.labels
        digests = {
            name: f"{a.shape} {a.dtype} {hashlib.sha256(np.ascontiguousarray(a)).hexdigest()}"
            for name, a in arrays.items()
        }
        settings: dict[str, Any] = {"var": self.var, "weights": self.weights, "task": self.task}
        settings |= {"monitor": self.monitor}
        return digests | {name: str(value) for name, value in settings.items()}

    def state(self, chain: int) -> dict[str, Any]:
        """Return a chain's average as plain values."""
        return {"digest": self.digest, "average": self.chains[chain].state()}

    def restore(self, chain: int, state: dict[str, Any]) -> None:
        """Continue a chain's average from its saved state, which must be of the same data."""
        mine, theirs = self.digest, state["digest"]
        different = [n for n in sorted({*mine, *theirs}) if mine.get(n) != theirs.get(n)]
        if different:
            raise ValueError(
                f"The stored predictions '{self.name}' are of other {', '.join(different)} than "
                "now: resume with those of the run, or begin a new run."
            )
        self.begin_chain(chain).restore(state["average"])

    # ---- results ----------------------------------------------------------------------------

    @property
    def best(self) -> dict[str, Any]:
        """The best single draw by the monitored metric.

        Returns
        -------
        dict
            ``metric``, ``value``, ``chain``, ``draw`` (from 0, without tuning), and ``point``, the
            draw itself by value variable.

        Raises
        ------
        ValueError
            Without labels or draws.
        """
        found = {c: a.best for c, a in self.chains.items() if a.best is not None}
        if not found:
            raise ValueError("There is no best draw: it needs labels= and at least one draw.")
        one = next(iter(self.chains.values()))
        chain = max(found, key=lambda c: one.rank(found[c]["value"]))
        return {"metric": one.monitor, "chain": chain, **found[chain]}

    def to_dataset(self) -> Dataset:
        """Return the averages.

        Returns
        -------
        xarray.Dataset
            ``mean`` and ``sd`` of the predictions over all draws, with a dim ``test_row`` and
            those of the variable (without test data with those of the variable alone);
            ``chain_mean`` of each chain; ``weight`` of each draw. With labels, each metric of
            ``mean``, and with the dims (chain, draw) ``draw_<metric>`` of each draw and
            ``running_<metric>`` of the chain's average up to it. For classes,
            ``disagreement_of_draws`` and ``disagreement_of_chains``, the probability that two
            draws, or two chains' averages, predict different classes of a row, and
            ``mutual_information`` of class and draw in each row, in nats. Values that chains of
            different lengths do not have are NaN.

        Raises
        ------
        ValueError
            If there are no draws.
        """
        averages = {c: a for c, a in sorted(self.chains.items()) if a.n}
        if not averages:
            raise ValueError(f"{self!r} has no draws yet.")
        model = self.predictor.model
        dims = model.named_vars_to_dims.get(self.var, ())
        if self.predictor.data:
            dims = ("test_row", *dims[1:])
        coords = {d: np.asarray(model.coords[d]) for d in dims if model.coords.get(d) is not None}
        metrics = None if self.labels is None else self._metrics
        table = summarised(averages, metrics, self.task == "classification", dims, coords)
        if self.labels is not None:
            table["label"] = (("test_row", *table["mean"].dims[1 : self.labels.ndim]), self.labels)
        return table.assign_attrs(var=self.var, weights=self.weights)
