"""Effects whose likelihoods have unusual second derivatives, or none."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.op import Op

from pymc_sgmcmc.adaptation import curvature_warm_up
from pymc_sgmcmc.adaptation.change_of_form import OtherForm, form_changeable
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.integration.group_gradients import GroupGradients
from pymc_sgmcmc.integration.group_terms import group_terms
from pymc_sgmcmc.integration.integrated_model import integrated_model
from pymc_sgmcmc.integration.quadrature_points import points_of
from pymc_sgmcmc.integration.whether_to_integrate import terms_to_integrate
from pymc_sgmcmc.run.step_of_run import default_step

N_GROUPS, ROWS = 60, 3
GROUP = np.repeat(np.arange(N_GROUPS), ROWS)


def sequential_outcomes(log_of_not):
    """Whether each of three steps is passed, given the steps before: a product of the chances.

    ``log_of_not`` maps the chances of failing, shape (rows, 3), to the log of their product.
    """
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, size=N_GROUPS * ROWS)
    with pm.Model() as model:
        u = pm.Normal("u", 0, pm.HalfNormal("s"), shape=N_GROUPS)
        p = pm.math.sigmoid(u[GROUP][:, None] + np.arange(3.0))
        pm.Potential("all_failed", log_of_not(1 - p))
        pm.Bernoulli("y", p[:, 0], observed=y > 0)
    return model


def derivatives(model):
    terms = group_terms(model, ["u"])
    a = pt.matrix("effects")
    everything = {
        terms.groups: pt.arange(N_GROUPS),
        terms.rows: pt.arange(N_GROUPS * ROWS),
        terms.places: pt.as_tensor(GROUP),
    }
    everything |= {whole: array.astype(whole.dtype) for array, whole in terms.arrays.items()}
    [s] = [v for v in model.value_vars if v.name == "s_log__"]
    function = pytensor.function([a, s], terms.derivatives(a, everything), mode=PYTHON)
    return function(np.linspace(-2, 2, N_GROUPS)[:, None], 0.3)


def test_products_have_second_derivatives(python_by_default):
    """PyTensor has none for factors that may be 0: against the sum of logs, within rounding."""
    found = derivatives(sequential_outcomes(lambda q: pt.log(pt.prod(q, axis=1))))
    right = derivatives(sequential_outcomes(lambda q: pt.log(q).sum(axis=1)))
    for one, other in zip(found, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


class _Cosine(Op):
    """A function with a derivative, which has none."""

    def __init__(self, derivative=None):
        self.derivative = derivative

    def make_node(self, x):
        x = pt.as_tensor(x)
        return pytensor.graph.basic.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        function = np.cos if self.derivative else lambda x: -np.sin(x)
        outputs[0][0] = function(inputs[0])

    def pullback(self, inputs, outputs, output_gradients):
        if self.derivative is None:
            raise NotImplementedError("no second derivative")
        return [output_gradients[0] * self.derivative(inputs[0])]


def test_effects_without_second_derivatives_are_sampled(python_by_default, caplog):
    with pm.Model() as model:
        u = pm.Normal("u", 0, pm.HalfNormal("s"), shape=N_GROUPS)
        pm.Normal("y", _Cosine(_Cosine())(u)[GROUP], 1, observed=np.zeros(N_GROUPS * ROWS))
    with caplog.at_level("INFO"):
        assert terms_to_integrate(model, "auto", None, predicts=False) is None
    assert "PyTensor has no second derivatives for 'u'" in caplog.text
    with pytest.raises(ValueError, match=r"no second derivatives for 'u'. Leave integrate='auto'"):
        terms_to_integrate(model, ["u"], None, predicts=False)


def long_survivals():
    """Censored gamma times, with chances of surviving that are rounded to 0 at far effects."""
    rng = np.random.default_rng(1)
    time = rng.gamma(2.0, size=N_GROUPS * ROWS) * np.exp(rng.normal(0, 1.2, N_GROUPS)[GROUP])
    censored = rng.random(len(time)) < 0.6
    with pm.Model() as model:
        scale = pm.math.exp(pm.Normal("b") + pm.Normal("u", 0, pm.HalfNormal("s"), shape=60)[GROUP])
        pm.Censored(
            "time",
            pm.Gamma.dist(pm.LogNormal("shape"), 1 / scale),
            lower=None,
            upper=np.where(censored, time, np.inf),
            observed=time,
        )
    return model


@pytest.mark.parametrize("seen_at", ["initial point", "start of the warm-up"])
def test_gradients_where_survival_is_rounded_to_0(seen_at, python_by_default, monkeypatch):
    """The warm-up takes points that leave such places out, with finite and correct gradients."""
    if seen_at == "start of the warm-up":
        monkeypatch.setattr(GroupGradients, "refuse_start", lambda *args: None)
        monkeypatch.setattr(curvature_warm_up, "find_start", lambda *args: args[3])
    terms = group_terms(long_survivals(), ["u"])
    at = np.log([1.0, 1.2, 2.0])

    def gradients(**rule):
        integrated = integrated_model(terms, points_of(1, **rule))
        found = GroupGradients(integrated, integrated.value_vars)
        found.settle_around(at)
        return found

    few = gradients()
    assert np.isnan(few.likelihood(at).gradient).any()
    rng, start = np.random.default_rng(1), few.point(at)
    with form_changeable({"equally_spaced"}), pytest.raises(OtherForm, match="equally_spaced"):
        default_step(few.model, None, rng, of_groups=True, start=start)

    many = gradients(equally_spaced=True)
    gradient = many.likelihood(at).gradient
    with many.points_held():
        for axis, step in enumerate(1e-4 * np.eye(3)):
            above, below = (many.likelihood(at + sign * step).value for sign in (1, -1))
            assert gradient[axis] == pytest.approx((above - below) / 2e-4, rel=1e-5)
