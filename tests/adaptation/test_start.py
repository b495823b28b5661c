"""Where a warm-up starts: near the best mode, from poor points too, without Hessians of rows."""

import numpy as np
import pymc as pm
import pytest
from pymc.distributions.transforms import ordered
from pymc.exceptions import SamplingError

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation.curvature_warm_up import CurvatureWarmUp
from pymc_sgmcmc.adaptation.objective import Evaluated, Objective, RowsObjective
from pymc_sgmcmc.adaptation.scale_parameters import is_scale
from pymc_sgmcmc.adaptation.short_runs import Diverged
from pymc_sgmcmc.adaptation.start import Centre, find_start
from pymc_sgmcmc.adaptation.step_size import Pace
from pymc_sgmcmc.gradients.row_gradients import RowGradients

JAX = {"mode": "JAX"}


class Search:
    """The search of a model's start, on samples of its rows; it counts its passes."""

    def __init__(self, model):
        self.gradients = RowGradients(model, model.value_vars, compile_kwargs=JAX)
        self.whole = RowsObjective(self.gradients)
        self.begin = self.gradients.flat(model.initial_point())
        self.is_scale = is_scale(model, model.value_vars, self.gradients.source.shapes)

    def __call__(self, seed, n_first=1000):
        self.objective, rng = RowsObjective(self.gradients), np.random.default_rng(seed)

        def objective_of(n):
            return self.objective.some(n, rng)

        n_rows = self.gradients.n_rows
        with np.errstate(over="ignore", invalid="ignore"):
            return find_start(objective_of, n_rows, n_first, self.begin, self.is_scale, rng)

    @property
    def passes(self):
        return self.objective.passes


@pytest.mark.long
def test_components_that_start_far_from_their_rows():
    """A mixture of two lines by ascending intercepts: its components must find their rows."""
    rng = np.random.default_rng(1015)
    n = 4000
    x, second = rng.uniform(0, 10, n), rng.binomial(1, 0.25, n)
    line = np.where(second, 8 - 0.3 * x, 1 + 0.9 * x)
    y = line + rng.normal(0, np.where(second, 1.5, 0.8))
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        a = pm.Normal("a", 0, 10, shape=2, transform=ordered, initval=[0.0, 5.0])
        b, s = pm.Normal("b", 0, 2, shape=2), pm.HalfNormal("s", 2, shape=2)
        pm.NormalMixture("y", w=w, mu=a + b * x[:, None], sigma=s, observed=y)
    search = Search(model)
    truth = {
        "w_simplex__": np.log([0.75 / 0.25]) / 2,
        "a_ordered__": np.array([1.0, np.log(7.0)]),
        "b": np.array([0.9, -0.3]),
        "s_log__": np.log([0.8, 1.5]),
    }
    at_truth = search.whole.at(search.gradients.flat(truth)).value
    assert search.whole.at(search.begin).value > at_truth + 1000
    for seed in (1, 2, 3):
        # Of a normal posterior of 7 parameters the mode is 3.5 below the truth on average.
        assert search.whole.at(search(seed)).value < at_truth + 3.5


class Quadratic(Objective):
    """theta' A theta / 2, whose gradient far from the anchor lies as if the mode were elsewhere."""

    def __init__(self, matrix, mode):
        self.matrix, self.mode = matrix, mode

    def at(self, theta, with_curvature=False):
        gradient = self.matrix @ (theta - self.mode)
        value = (theta - self.mode) @ gradient / 2
        return Evaluated(value, gradient, -gradient, lambda: self.matrix)

    def _likelihood(self, theta, with_curvature):
        raise NotImplementedError


@pytest.mark.parametrize("distance", [1.5, 60.0])
def test_others_follow_a_scale_a_little(distance):
    """In one step they go no further than 2 of their sds, in all directions together, the mean
    square: what is far away may be another mode."""
    matrix = np.array([[4.0, 0.5, 0.0], [0.5, 9.0, 0.1], [0.0, 0.1, 1.0]])
    mode = np.array([0.2, distance / 3, 0.0])
    is_scale = np.array([False, False, True])
    centre = Centre(Quadratic(matrix, mode), np.zeros(3), is_scale)
    step = centre.step(np.random.default_rng(1), differences=False)
    own = matrix[:2, :2]
    far = np.sqrt(step[:2] @ own @ step[:2] / 2)
    if distance > 2:
        assert far == pytest.approx(2.0)
        np.testing.assert_allclose(step[1] / step[0], mode[1] / mode[0], rtol=0.05)
    else:
        assert far == pytest.approx(np.sqrt(mode[:2] @ own @ mode[:2] / 2), rel=0.05)


@pytest.mark.slow(4)
def test_no_hessians_of_rows():
    """Central differences for one Hessian of 1000 of the rows would take 30 passes."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(5000, 75))
    y = X.sum(axis=1) + 30 * rng.normal(size=5000)
    with pm.Model() as model:
        b, s = pm.Normal("b", 0, 100, shape=75), pm.HalfNormal("s", 100)
        pm.Normal("y", X @ b, s, observed=y)
    search = Search(model)
    found = search.gradients.point(search(1))
    assert search.passes < 60
    mode, sd = np.linalg.solve(X.T @ X, X.T @ y), 30 / np.sqrt(5000)
    # It ends where 0.05 d / 2 are left to gain: at a root mean square of 0.22 sd at most.
    assert np.sqrt(np.mean((found["b"] - mode) ** 2)) < 0.3 * sd
    # Its own sd is 0.01; 75 free means make it 0.0075 smaller.
    assert abs(found["s_log__"] - np.log(30)) < 0.06


def line():
    x = np.linspace(-1, 1, 50)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 3), pm.Normal("b", 0, 3)
        pm.Normal("y", a + b * x, 1.0, observed=2 * x)
    return model


@pytest.mark.slow(3)
def test_chains_begin_closer_after_each_divergence(monkeypatch):
    seen = []

    def diverge(self, positions, *args, **kwargs):
        seen.append(np.ptp(positions, axis=0))
        raise Diverged("'b' went 60 standard deviations away")

    monkeypatch.setattr(CurvatureWarmUp, "_draws", diverge)
    told = r"'b' went 60 standard deviations away.*leave undetermined.*non-centred where each has"
    with line(), pytest.raises(SamplingError, match=told):
        sgm.MSGNHT_S(compile_kwargs=JAX, rng=1)
    # Draws of four normal numbers spread anew each time: 64 times closer at the last.
    assert np.all(seen[-1] < 0.2 * seen[0])


@pytest.mark.slow(3)
def test_what_diverged_is_named(monkeypatch):
    """A step that is far too large: the elements that ran away are named."""
    monkeypatch.setattr(
        "pymc_sgmcmc.adaptation.curvature_warm_up.pace", lambda *args: Pace(1.6e4, 1.0)
    )
    with line(), pytest.raises(SamplingError, match=r"with the smallest, 15.6, .*along '(a|b)'"):
        sgm.MSGNHT_S(compile_kwargs=JAX, rng=1)


@pytest.mark.slow(8)
@pytest.mark.parametrize("side", [-1, 1])
def test_the_default_call_begins_at_initvals(side):
    """No chain crosses from one mode to the other."""
    y = np.random.default_rng(1).normal(4, 1, 400)
    with pm.Model():
        a = pm.Normal("a", 0, 3)
        pm.Normal("y", a**2, 1, observed=y)
        tree = sgm.sample(
            20, chains=2, random_seed=1, progressbar=False, quiet=True, initvals={"a": 1.5 * side}
        )
    assert (np.sign(tree.posterior["a"]) == side).all()


@pytest.mark.slow(2)
def test_shares_of_coefficients_that_are_0_do_not_run_away():
    """R2-D2: the joint density is flat where a share and its coefficient approach 0 together.

    A share of such a coefficient, of Gamma(1/2) and more, has a log with an sd of about 2.2.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 12))
    with pm.Model() as model:
        r2, shares = pm.Beta("r2", 1, 1), pm.Dirichlet("shares", np.full(12, 0.5))
        beta = pm.Normal("beta", 0, pm.math.sqrt(shares * r2 / (1 - r2)), shape=12)
        pm.Normal("y", pm.math.dot(X, beta), 1, observed=rng.normal(X[:, 0] - X[:, 1] / 2, 1))
    theta = Search(model)(1)
    assert np.abs(theta[1:12]).max() < 6
