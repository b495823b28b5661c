"""A million ratings by the default call: which films please, in a hierarchical logistic regression.

A rating of 4 or 5 counts as pleased. Film j of the 200 most rated has an effect alpha_j ~
N(mu, tau^2); all other films share one, which belongs to them. Columns: the mean of the user's
other ratings, and the logarithms of how many ratings the user has given and the film has got, all
standardised. 206 parameters, 1,000,209 rows, `sgm.sample()` as it stands.

There is no run of NUTS beside it: at a tenth of a second per gradient of all rows it would take
hours. What is shown instead is the verdict from exact gradients at 100 draws,
`sgm.diagnose(idata, model, full_data=True)`, and the normal approximation at the posterior mode of
the effects given the draws' mean of tau.
"""

import json

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from common import Report, arguments
from datasets import load_movielens
from scipy.special import expit

import pymc_sgmcmc as sgm

FILMS = 200


def table(quick: bool):
    """Film (0 for all that are not among the most rated), columns, and whether it pleased."""
    user, movie, rating = load_movielens()
    if quick:
        user, movie, rating = (a[::50] for a in (user, movie, rating))
    ratings_of_user, ratings_of_movie = np.bincount(user), np.bincount(movie)
    most = np.argsort(-ratings_of_movie)[:FILMS]
    number = np.zeros(len(ratings_of_movie), int)
    number[most] = np.arange(1, FILMS + 1)
    others = np.bincount(user, weights=rating)[user] - rating
    mean_of_others = others / np.maximum(ratings_of_user[user] - 1, 1)
    columns = [mean_of_others, np.log(ratings_of_user[user]), np.log(ratings_of_movie[movie])]
    X = np.column_stack(columns)
    return number[movie], (X - X.mean(axis=0)) / X.std(axis=0), (rating >= 4).astype(int)


def build_model(film, X, y) -> pm.Model:
    """The regression."""
    coords = {"column": ["user's other ratings", "user's number", "film's number"]}
    with pm.Model(coords=coords | {"film": np.arange(FILMS + 1)}) as model:
        mu = pm.Normal("mu", 0, 2)
        tau = pm.HalfNormal("tau", 1)
        alpha = pm.Normal("alpha", mu, tau, dims="film")
        beta = pm.Normal("beta", 0, 2, dims="column")
        logit = alpha[pm.Data("number", film)] + pm.Data("X", X) @ beta
        pm.Bernoulli("pleased", logit_p=logit, observed=y)
    return model


def normal_approximation(film, X, y, mu: float, tau: float):
    """Mode and sds of alpha and beta given mu and tau, by Newton's method."""
    k = FILMS + 1
    theta = np.zeros(k + X.shape[1])
    precision = np.r_[np.full(k, tau**-2), np.full(X.shape[1], 1 / 4)]
    prior_mean = np.r_[np.full(k, mu), np.zeros(X.shape[1])]
    for _ in range(10):
        p = expit(theta[:k][film] + X @ theta[k:])
        w = p * (1 - p)
        hessian = np.diag(precision)
        hessian[np.arange(k), np.arange(k)] += np.bincount(film, w, k)
        cross = np.array([np.bincount(film, w * x, k) for x in X.T])
        hessian[k:, :k] += cross
        hessian[:k, k:] += cross.T
        hessian[k:, k:] += (X.T * w) @ X
        slope = np.r_[np.bincount(film, y - p, k), X.T @ (y - p)] - precision * (theta - prior_mean)
        theta = theta + np.linalg.solve(hessian, slope)
    return theta, np.sqrt(np.diag(np.linalg.inv(hessian)))


def main():
    """Sample, judge, compare and draw."""
    args = arguments(__doc__.splitlines()[0])
    report = Report("movielens_hierarchy", args.quick)
    film, X, y = table(args.quick)
    model = build_model(film, X, y)
    with model:
        idata = sgm.sample(random_seed=args.seed, progressbar=False)
    posterior, attrs = idata.posterior, idata.posterior.attrs
    chosen = json.loads(attrs["adaptation"])
    ess, rhat = az.ess(posterior), az.rhat(posterior)
    report.print(
        f"{len(y)} rows; batches of {chosen['batch_size']}, {chosen['thin']} updates per draw"
    )
    report.print(
        f"{attrs['data_passes_warmup']:.1f} passes of warm-up, "
        f"{attrs['data_passes'] - attrs['data_passes_warmup']:.1f} of sampling "
        f"({posterior.sizes['chain']} x {posterior.sizes['draw']} draws)"
    )
    report.print(
        f"smallest ESS {min(float(ess[v].min()) for v in ess.data_vars):.0f}, "
        f"largest R-hat {max(float(rhat[v].max()) for v in rhat.data_vars):.3f}"
    )
    report.print(f"verdict: {idata['diagnosis'].attrs['verdict']}")
    exact = sgm.diagnose(idata, model, full_data=True)
    report.print(f"verdict from exact gradients at 100 draws: {exact.verdict}\n")
    over = ("chain", "draw")
    mu, tau = float(posterior["mu"].mean()), float(posterior["tau"].mean())
    report.table(
        ["", "mean", "sd"],
        [
            [name, f"{float(d.mean()):.4f}", f"{float(d.std()):.4f}"]
            for name, d in [("mu", posterior["mu"]), ("tau", posterior["tau"])]
            + [(str(c.values), posterior["beta"].sel(column=c)) for c in posterior["column"]]
        ],
    )
    mode, sd = normal_approximation(film, X, y, mu, tau)
    found = np.r_[posterior["alpha"].mean(over), posterior["beta"].mean(over)]
    found_sd = np.r_[posterior["alpha"].std(over), posterior["beta"].std(over)]
    off, ratio = (found - mode) / sd, found_sd / sd
    report.print(
        "\nagainst the normal approximation given tau, 204 effects: largest error of a mean "
        f"{np.abs(off).max():.2f} sd, rms {np.sqrt(np.mean(off**2)):.3f}; "
        f"sd ratio {ratio.min():.2f} to {ratio.max():.2f}, mean {ratio.mean():.3f}"
    )
    alpha = posterior["alpha"].stack(sample=over).values[1:]
    order = np.argsort(alpha.mean(axis=1))
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    low, high = np.quantile(alpha[order], [0.05, 0.95], axis=1)
    axis.vlines(np.arange(FILMS), low, high, color="C0", lw=1)
    axis.plot(alpha.mean(axis=1)[order], "k.", ms=2)
    axis.set(
        xlabel="the 200 most rated films, in the order of their effects",
        ylabel="log odds of pleasing, 90% interval",
        title=f"{len(y):,} ratings, {attrs['data_passes']:.0f} passes over the data",
    )
    report.save(figure)


if __name__ == "__main__":
    main()
