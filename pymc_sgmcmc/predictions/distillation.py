"""Distillation: one network that predicts like the average of many draws."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType
from pymc.model import Model
from pytensor.compile.mode import get_mode
from pytensor.graph.replace import clone_replace
from pytensor.tensor.type import TensorType

from pymc_sgmcmc.adaptation.adam import direction
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.number_checks import positive_number, whole_number
from pymc_sgmcmc.predictions.predictions import Predictions
from pymc_sgmcmc.predictions.predictor import Predictor, predicted


class Distilled(NamedTuple):
    """A trained student."""

    student: Model
    var: str
    point: PointType
    """Value of each value variable, as for ``student.compile_fn``."""
    values: PointType
    """Value of each free variable of the student, on its own scale."""
    loss: np.ndarray
    """Mean loss of each epoch: cross-entropy in nats, or half the squared error."""
    compile_kwargs: dict[str, Any] | None

    def predict(self, data: Mapping[str, Any], batch_size: int = 1000) -> np.ndarray:
        """Predict with the student.

        Parameters
        ----------
        data : dict of arrays
            By the name of the student's `pm.Data`; rows along the first axis.
        batch_size : int, default 1000
            Rows per evaluation.

        Returns
        -------
        array, shape (rows, ...)
        """
        predictor = Predictor(self.student, self.var, data, batch_size)
        predictor.compile_kwargs = self.compile_kwargs
        return predictor(self.point)


def distill(
    teacher: Predictions,
    student: Model,
    var: str | None = None,
    *,
    start: Mapping[str, Any] | None = None,
    epochs: int = 20,
    batch_size: int = 100,
    learning_rate: float = 1e-3,
    random_seed: int | np.random.Generator | None = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> Distilled:
    """Train a student on averaged predictions, so that one network replaces all draws.

    The loss is the cross-entropy of the teacher's averaged probabilities and the student's (half
    the squared error for predictions that are not probabilities of classes), minus the student's
    log prior divided by the number of rows. It is minimised by Adam with batches from shuffled
    epochs and a learning rate that falls to 0 along a cosine.

    Parameters
    ----------
    teacher : Predictions
        Predictions of a finished run on the inputs to learn from. Training inputs alone teach
        little where the network fits them: add copies with noise or shifts, as many as memory
        allows.
    student : pymc.Model
        With `pm.Data` of the same names as the teacher's data, of any number of rows, and a
        variable of the same shape as the teacher's predictions. Any architecture; its priors
        regularise it.
    var : str, optional
        That variable: a deterministic, or an observed variable. Default: the teacher's name.
    start : dict, optional
        Starting values of free variables, on their own scale. Weights of hidden layers need random
        ones, because the model's initial point is the same for all of them.
    epochs : int, default 20
        Passes over the teacher's rows.
    batch_size : int, default 100
        Rows per update.
    learning_rate : float, default 1e-3
        Adam's learning rate at the start.
    random_seed : int or numpy.random.Generator, optional
        Seed of the order of rows.
    compile_kwargs : dict, optional
        For `pytensor.function`.

    Returns
    -------
    Distilled
        The trained student, with ``predict``, ``values`` and ``loss``.

    Raises
    ------
    ValueError
        If the teacher has no draws; if the shapes of the student's data or predictions differ from
        the teacher's; if the loss is not finite.

    References
    ----------
    A. Korattikara, V. Rathod, K. Murphy and M. Welling (2015), Bayesian dark knowledge, NeurIPS;
    distilled pSGLD in C. Li, C. Chen, D. Carlson and L. Carin (2016), AAAI, arXiv:1512.07666.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> X = np.random.default_rng(1).normal(size=(200, 2))
    >>> with pm.Model() as model:
    ...     w = pm.Normal("w", 0, 3, shape=2)
    ...     y = pm.Bernoulli("y", logit_p=pm.Data("X", X) @ w, observed=(X[:, 0] > 0).astype(int))
    ...     teacher = sgm.Predictions("y", data={"X": X})
    ...     step = sgm.SGLD(step_size=0.02, batch_size=20, thin=10)
    ...     idata = sgm.sample(
    ...         50, tune=50, chains=1, step=step, predictions=teacher, var_names=[],
    ...         random_seed=1, quiet=True,
    ...     )
    >>> small = sgm.distill(
    ...     teacher, model, epochs=20, batch_size=10, learning_rate=0.3, random_seed=1
    ... )
    >>> error = small.predict({"X": X}) - idata.test_predictions["mean"].values[:, 1]
    >>> bool(np.abs(error).mean() < 0.03)
    True
    """
    epochs = whole_number("epochs", epochs, 1)
    learning_rate = positive_number("learning_rate", learning_rate, "For example 1e-3.")
    targets = teacher.to_dataset()["mean"].values
    data = teacher.predictor.data
    n = len(targets)
    batch_size = min(whole_number("batch_size", batch_size, 1, unit="rows"), n)
    var = teacher.var if var is None else var
    if var not in student.named_vars:
        raise ValueError(f"The student has no variable '{var}': pass var=.")
    point = _start(student, start)
    example = Predictor(student, var, {k: v[:batch_size] for k, v in data.items()}, batch_size)
    shape = example(point).shape[1:]
    if teacher.task == "classification" and not shape:  # the probability of one of two classes
        targets = targets[:, 1]
    if shape != targets.shape[1:]:
        raise ValueError(
            f"The student's '{var}' has the shape (rows, {', '.join(map(str, shape))}), but the "
            f"teacher's predictions have {targets.shape}: they must agree beyond the rows."
        )
    update = _loss_and_gradient(student, var, example, targets, teacher.task, n, compile_kwargs)
    names = [v.name for v in student.value_vars]
    theta = [point[name] for name in names]
    mean, square = ([np.zeros_like(t) for t in theta] for _ in range(2))
    rng = np.random.default_rng(random_seed)
    n_updates, k, losses = epochs * (n // batch_size), 0, []
    for _ in range(epochs):
        total = 0.0
        for rows in rng.permutation(n)[: n // batch_size * batch_size].reshape(-1, batch_size):
            batch = [array[rows] for array in data.values()]
            loss, *gradient = update(*theta, *batch, targets[rows].astype(pytensor.config.floatX))
            if not np.isfinite(loss):
                raise ValueError(
                    f"The student's loss is not finite after {k} updates: pass a smaller "
                    "learning_rate or another start."
                )
            total += float(loss)
            rate = 0.5 * learning_rate * (1 + np.cos(np.pi * k / n_updates))
            k += 1
            steps = zip(theta, gradient, mean, square, strict=True)
            theta = [
                (t - rate * direction(np.asarray(g), m, s, k)).astype(t.dtype)
                for t, g, m, s in steps
            ]
        losses.append(total / (n // batch_size))
    point = dict(zip(names, theta, strict=True))
    with quick_graphs():
        values = student.compile_fn(student.unobserved_value_vars, on_unused_input="ignore")(point)
    own = dict(zip([v.name for v in student.unobserved_value_vars], values, strict=True))
    free = {rv.name: own[rv.name] for rv in student.free_RVs}
    return Distilled(student, var, point, free, np.array(losses), compile_kwargs)


@quick_graphs()
def _start(student: Model, start: Mapping[str, Any] | None) -> PointType:
    """Return the starting point by value variable."""
    from pymc.initial_point import make_initial_point_fn

    known = {rv.name for rv in student.free_RVs}
    for name in set(start or {}) - known:
        raise ValueError(f"start: the student has no free variable '{name}'.")
    shapes = student.eval_rv_shapes()
    for name, value in (start or {}).items():
        if np.shape(value) != shapes[name]:
            raise ValueError(
                f"start: '{name}' has the shape {np.shape(value)}, but {shapes[name]} in the "
                "student."
            )
    overrides = {student[name]: np.asarray(value) for name, value in (start or {}).items()}
    return make_initial_point_fn(model=student, overrides=overrides)(0)


@quick_graphs()
def _loss_and_gradient(student, var, example, targets, task, n_rows, compile_kwargs):
    """Compile the loss of a batch and its gradient."""
    tests = {
        student[key]: TensorType(student[key].dtype, (None, *value.shape[1:]))(key)
        for key, value in example.data.items()
    }
    q = TensorType(pytensor.config.floatX, (None, *targets.shape[1:]))("teacher")
    [p] = clone_replace([predicted(student, var)], tests, rebuild_strict=False)
    if task == "classification":
        tiny = np.finfo(p.dtype).tiny
        both = [(q, p)] if p.ndim == 2 else [(q, p), (1 - q, 1 - p)]
        each = -sum(a * pt.log(pt.maximum(b, tiny)) for a, b in both)
    else:
        each = 0.5 * (p - q) ** 2
    loss = each.sum() / q.shape[0].astype(p.dtype)
    log_prior = student.logp(vars=student.free_RVs, jacobian=False)
    objective = loss - log_prior / n_rows
    gradient = pt.grad(objective, student.value_vars, disconnected_inputs="ignore")
    kwargs = dict(compile_kwargs or {})
    mode = get_mode(kwargs.pop("mode", None))
    return pytensor.function(
        [*student.value_vars, *tests.values(), q],
        [loss, *gradient],
        mode=mode,
        on_unused_input="ignore",
        **kwargs,
    )
