"""Terms of Bambi's formulas."""

import bambi as bmb

from gallery.bambi_rows import FRAME, ROW_DIM, built
from gallery.forms import accepted


@accepted(ROW_DIM)
def plain():
    return built("y ~ x + z")


@accepted(ROW_DIM)
def interaction():
    return built("y ~ x * z")


@accepted(ROW_DIM)
def categorical_predictor():
    return built("y ~ x + kind")


@accepted(ROW_DIM)
def group_intercepts():
    return built("y ~ x + (1|g)")


@accepted(ROW_DIM)
def group_slopes():
    return built("y ~ x + (x|g)")


@accepted(ROW_DIM)
def group_slopes_centred():
    return built("y ~ x + (x|g)", noncentered=False)


@accepted(ROW_DIM)
def b_splines():
    return built("y ~ bs(u, df=6)")


@accepted(ROW_DIM)
def hsgp():
    return built("y ~ 0 + hsgp(u, m=6, c=1.5)")


@accepted(ROW_DIM)
def hsgp_by_group():
    return built("y ~ 0 + hsgp(u, by=g, m=6, c=1.5)")


@accepted(ROW_DIM)
def offset():
    return built("count ~ x + offset(log(exposure))", "poisson")


@accepted(ROW_DIM)
def proportion():
    return built("p(successes, trials) ~ x", "binomial")


@accepted(ROW_DIM)
def censored():
    return built("censored(clipped, status) ~ x")


@accepted(ROW_DIM)
def truncated():
    return built("truncated(inside, -2, 2) ~ x")


@accepted(ROW_DIM)
def weighted():
    return built("weighted(y, weight) ~ x")


@accepted(ROW_DIM)
def distributional():
    return built(["y ~ x", "sigma ~ z"])


@accepted(ROW_DIM)
def own_priors():
    priors = {"x": bmb.Prior("Laplace", mu=0, b=1), "sigma": bmb.Prior("Exponential", lam=1)}
    return built("y ~ x + z", priors=priors, center_predictors=False)


@accepted(ROW_DIM, n_rows=24)
def rows_dropped():
    """Bambi drops the rows with NaN."""
    frame = FRAME[["y", "x"]].copy()
    frame.loc[:5, "x"] = float("nan")
    model = bmb.Model("y ~ x", frame, dropna=True)
    model.build()
    return model.backend.model
