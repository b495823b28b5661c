"""Models of rows whose posteriors are known, and a test that draws are right."""

import numpy as np
import pymc as pm
from arviz_stats.base import array_stats
from scipy.optimize import minimize
from scipy.special import expit, gammaln
from scipy.stats import multivariate_t


class Truth:
    """Means and standard deviations of a posterior, by name."""

    def __init__(self, mean, sd, error=0.0):
        self.mean, self.sd = mean, sd
        self.error = error
        """Its own Monte Carlo error, in sds."""


class Linear:
    """Flat priors of coefficients and sd: a t distribution and an inverse gamma distribution.

    Two columns are correlated, one is a hundred times larger than the others, one smaller.
    """

    def __init__(self, n_rows=3000):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(n_rows, 4)) + 0.5
        X[:, 1] = 0.95 * X[:, 0] + 0.3 * X[:, 1]
        self.X = X * [1.0, 1.0, 100.0, 0.05]
        self.y = self.X @ [1.0, -1.0, 0.01, 5.0] + 3.0 + 2.0 * rng.normal(size=n_rows)

    def model(self):
        with pm.Model() as model:
            b = pm.Flat("b")
            w = pm.Flat("w", shape=4)
            s = pm.HalfFlat("s")
            pm.Normal("y", b + pm.Data("X", self.X) @ w, s, observed=self.y)
        return model

    def truth(self):
        rows = np.column_stack([np.ones(len(self.y)), self.X])
        inverse = np.linalg.inv(rows.T @ rows)
        centre = inverse @ rows.T @ self.y
        ssr = np.sum((self.y - rows @ centre) ** 2)
        # p(s^2) is proportional to (s^2)^(-1/2): s^2 is inverse gamma (a, ssr / 2).
        a = (len(self.y) - rows.shape[1] - 1) / 2
        sd = np.sqrt(ssr / 2 / (a - 1) * np.diag(inverse))
        s_mean = np.sqrt(ssr / 2) * np.exp(gammaln(a - 0.5) - gammaln(a))
        s_sd = np.sqrt(ssr / 2 / (a - 1) - s_mean**2)
        return Truth(
            {"b": centre[0], "w": centre[1:], "s": s_mean}, {"b": sd[0], "w": sd[1:], "s": s_sd}
        )


class RareLogistic:
    """A logistic regression two of whose columns are 0 in 99% of the rows.

    Its truth is by importance sampling, from a t distribution around the mode.
    """

    def __init__(self, n_rows=4000):
        rng = np.random.default_rng(1)
        rare = rng.random((n_rows, 2)) < [0.01, 0.004]
        self.X = np.column_stack([np.ones(n_rows), rng.normal(size=n_rows), rare]).astype(float)
        self.y = rng.random(n_rows) < expit(self.X @ [-1.0, 0.8, 1.5, 0.5])

    def model(self):
        with pm.Model() as model:
            w = pm.Normal("w", 0, 3, shape=4)
            pm.Bernoulli("y", logit_p=pm.Data("X", self.X) @ w, observed=self.y)
        return model

    def truth(self):
        def minus_log_p(w):
            eta = np.atleast_2d(w) @ self.X.T
            # As -sum of log(1 + exp(eta)) - y eta
            return (np.logaddexp(0, eta) - self.y * eta).sum(axis=1) + (np.atleast_2d(w) ** 2).sum(
                axis=1
            ) / 18

        mode = minimize(lambda w: minus_log_p(w)[0], np.zeros(4)).x
        p = expit(self.X @ mode)
        covariance = np.linalg.inv((self.X.T * (p * (1 - p))) @ self.X + np.eye(4) / 9)
        t = multivariate_t(mode, covariance, df=6, seed=2)
        draws = t.rvs(10_000)
        log_weights = np.concatenate([-minus_log_p(part) for part in np.split(draws, 20)])
        log_weights -= t.logpdf(draws)
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        mean = weights @ draws
        sd = np.sqrt(weights @ (draws - mean) ** 2)
        return Truth({"w": mean}, {"w": sd}, error=np.sqrt(np.sum(weights**2)))


class Separated:
    """A logistic regression with two correlated columns that are 0 but in 30 rows without events.

    The priors end its flat directions, and where they meet the likelihood it is a hundred times
    steeper than on average. Its truth is by a grid.
    """

    def __init__(self, n_rows=3000, n_rare=30):
        rng = np.random.default_rng(1)
        self.rare = np.zeros((n_rows, 2))
        self.rare[:n_rare, 0] = 1
        self.rare[:n_rare, 1] = rng.integers(1, 5, n_rare)
        self.centre, self.scale = self.rare.mean(axis=0), self.rare.std(axis=0)
        self.y = rng.random(n_rows) < 0.06
        self.y[:n_rare] = False
        self.n_rare = n_rare

    def model(self):
        X = (self.rare - self.centre) / self.scale
        with pm.Model() as model:
            w = pm.Normal("w", 0, np.sqrt(10), shape=2)
            b = pm.Normal("b", 0, np.sqrt(10))
            pm.Bernoulli("y", logit_p=b + pm.Data("X", X) @ w, observed=self.y)
        return model

    def truth(self):
        common = self.y[self.n_rare :]
        rate = common.mean()
        eta = np.log(rate / (1 - rate)) + np.linspace(-0.5, 0.5, 60)  # of the common rows
        axis = np.linspace(-16, 16, 400)
        v, u, eta = np.meshgrid(axis, axis, eta, indexing="ij")
        b = eta + (v * self.centre[0] / self.scale[0]) + (u * self.centre[1] / self.scale[1])
        log_p = common.sum() * eta - len(common) * np.logaddexp(0, eta)
        for count, rows in zip(
            *np.unique(self.rare[: self.n_rare, 1], return_counts=True), strict=True
        ):
            of_rare = eta + v / self.scale[0] + u * count / self.scale[1]
            log_p -= rows * np.logaddexp(0, of_rare)
        log_p -= (v**2 + u**2 + b**2) / 20
        p = np.exp(log_p - log_p.max())
        p /= p.sum()

        def moments(x):
            mean = np.sum(p * x)
            return mean, np.sqrt(np.sum(p * (x - mean) ** 2))

        each = [moments(x) for x in (v, u, b)]
        mean, sd = ([m[k] for m in each] for k in (0, 1))
        return Truth({"w": np.array(mean[:2]), "b": mean[2]}, {"w": np.array(sd[:2]), "b": sd[2]})


class Groups:
    """Rows of 12 groups of very different sizes; given tau everything else is Gaussian."""

    def __init__(self, n_rows=2500, n_groups=12):
        rng = np.random.default_rng(3)
        share = rng.dirichlet(np.ones(n_groups))
        self.group = np.concatenate(
            [np.arange(n_groups), rng.choice(n_groups, n_rows - n_groups, p=share)]
        )
        self.y = (2.0 + 0.7 * rng.normal(size=n_groups))[self.group] + rng.normal(size=n_rows)
        self.n_groups = n_groups

    def model(self):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 5)
            tau = pm.HalfNormal("tau", 1)
            a = pm.Normal("a", mu, tau, shape=self.n_groups)
            pm.Normal("y", a[pm.Data("group", self.group)], 1.0, observed=self.y)
        return model

    def truth(self):
        n = np.bincount(self.group)
        centre = np.bincount(self.group, self.y) / n
        tau = np.linspace(1e-3, 4, 4000)
        # of the groups' means around mu, and of mu given tau
        v = tau[:, None] ** 2 + 1 / n
        precision = 1 / 25 + (1 / v).sum(axis=1)
        mu = (centre / v).sum(axis=1) / precision
        log_p = -0.5 * (np.log(v) + centre**2 / v).sum(axis=1)
        log_p += 0.5 * precision * mu**2 - 0.5 * np.log(precision) - tau**2 / 2
        p = np.exp(log_p - log_p.max())
        p /= p.sum()
        pull = (1 / n) / v  # towards mu
        a = centre * (1 - pull) + pull * mu[:, None]
        a_var = (1 - pull) / n + pull**2 / precision[:, None]

        def moments(mean, var):
            centre = p @ mean
            return centre, np.sqrt(p @ (var + (mean - centre) ** 2))

        each = {"mu": moments(mu, 1 / precision), "tau": moments(tau, 0.0), "a": moments(a, a_var)}
        return Truth(*({name: m[k] for name, m in each.items()} for k in (0, 1)))


def assert_right(idata, truth, ess=400):
    """Means within 0.1 sd and sds within 10%, but for 4 Monte Carlo errors of both sides."""
    for name, mean in truth.mean.items():
        draws = idata.posterior[name].to_numpy()
        draws = draws.reshape(*draws.shape[:2], -1)
        for k, (m, sd) in enumerate(zip(np.ravel(mean), np.ravel(truth.sd[name]), strict=True)):
            one = draws[:, :, k]
            error = array_stats.mcse(one, chain_axis=0, draw_axis=1, method="mean") / sd
            error = np.hypot(error, truth.error)
            off = (one.mean() - m) / sd
            assert abs(off) < 0.1 + 4 * error, f"mean of {name}[{k}]: off by {off:.3f} sd"
            error = array_stats.mcse(one, chain_axis=0, draw_axis=1, method="sd") / sd
            error = np.hypot(error, truth.error)
            ratio = one.std() / sd
            assert abs(ratio - 1) < 0.1 + 4 * error, f"sd of {name}[{k}]: {ratio:.3f} of the exact"
            assert array_stats.ess(one, chain_axis=0, draw_axis=1) > ess / 2
