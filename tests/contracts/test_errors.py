"""What cannot work is refused before anything is compiled, naming name, value and remedy."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from models import CLASS, COORDS, GROUP, MODELS, REAL, N, X
from pymc.exceptions import ImputationWarning, SamplingError
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_sgmcmc as sgm
from pymc_sgmcmc import kernel
from pymc_sgmcmc.adaptation.metric_and_batch_size import automatic_batch_size, tell_of_rows
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.gradients.model_gradient import gradient_source


@pytest.fixture
def _no_loop(monkeypatch):
    """Compiling fails the test."""

    def loop(*args):
        pytest.fail("compiled before the error was found")

    monkeypatch.setattr(kernel, "Loop", loop)


def refused(model, *matches, error=ValueError, vars=None, **options):
    """The step is refused with a message that matches every pattern."""
    options = {"step_size": 0.01} | options
    with model, pytest.raises(error) as caught:
        sgm.MSGNHT_S(vars, **options)
    for match in matches:
        caught.match(match)


pytestmark = pytest.mark.usefixtures("_no_loop")


class BlackBox(Op):
    """An operation that has no gradient."""

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.dscalar()])

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = np.asarray(np.sin(inputs[0]))


def observed(rows_of, coords=COORDS):
    """A model whose observed variable is made by ``rows_of(mu)``."""
    with pm.Model(coords=coords) as model:
        rows_of(pm.Normal("mu", 0, 1))
    return model


# ---- the dim -------------------------------------------------------------------------------


def test_no_observed_variable():
    model = observed(lambda mu: None)
    refused(model, "No observation dim", "batch_size=None", batch_size=5)


def test_scalar_observed():
    model = observed(lambda mu: pm.Normal("y", mu, 1, observed=0.3))
    refused(model, "No observation dim", "'y'", "one value", "batch_size=None", batch_size=5)


def test_nobody_is_told_to_leave_a_batch_size_that_was_not_passed(caplog):
    """Without rows the automatic batch size is all the data, which a message says."""
    model = observed(lambda mu: pm.Normal("y", mu, 1, observed=0.3))
    with caplog.at_level("INFO", logger="pymc.sgmcmc"):
        tell_of_rows(model, None)
    assert automatic_batch_size(model, None, 1, many=False, needed=False) is None
    assert caplog.messages == [
        "All rows are used at each update: No observation dim found: the observed 'y' have no axis "
        "to slice into batches, each is one value."
    ]


def test_several_candidates():
    coords = {"place": range(6), "day": range(8)}
    data = np.zeros((6, 8))
    model = observed(lambda mu: pm.Normal("y", mu, 1, observed=data, dims=("place", "day")), coords)
    refused(model, "'y'", "'place', 'day'", "minibatch_dim=", batch_size=5)


def test_several_candidates_without_dims():
    model = observed(lambda mu: pm.Normal("y", mu, 1, observed=np.zeros((6, 8))))
    refused(model, "'y'", "length 6", "length 8", "Give dims=.*minibatch_dim=", batch_size=5)


def test_array_with_two_axes_of_the_rows_length():
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=N)
        pm.Normal("y", pt.dot(REAL * REAL[:, None], w), 1, observed=REAL)
    refused(model, rf"\({N}, {N}\)", "pm.Data with dims=", "minibatch_dim=", batch_size=5)


def test_unknown_minibatch_dim():
    refused(
        MODELS["linear"](), "minibatch_dim='rows'", "'obs', 'feature'",
        batch_size=5, minibatch_dim="rows",
    )  # fmt: skip


def test_minibatch_dim_of_no_observed_variable():
    refused(
        MODELS["linear"](), "No observation dim", "'y'", "dim 'feature'", "minibatch_dim=",
        batch_size=2, minibatch_dim="feature",
    )  # fmt: skip


def test_minibatch_dim_without_batch_size():
    refused(MODELS["linear"](), "minibatch_dim='obs'", "batch_size=", minibatch_dim="obs")


@pytest.mark.parametrize("batch_size", [0, -3, N + 1, 2.5, "5", True])
def test_batch_size(batch_size):
    message = rf"batch_size={batch_size!r}.*between 1 and.*{N}"
    refused(MODELS["linear"](), message, batch_size=batch_size)


# ---- rows that depend on each other --------------------------------------------------------


@pytest.mark.parametrize(
    "rows_of",
    [
        lambda mu: pm.MvNormal("y", mu, np.eye(N), observed=REAL, dims="obs"),
        lambda mu: pm.GaussianRandomWalk(
            "y", mu, 1, init_dist=pm.Normal.dist(), observed=REAL, dims="obs"
        ),
        lambda mu: pm.AR("y", [mu], 1, init_dist=pm.Normal.dist(), observed=REAL, dims="obs"),
        lambda mu: pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, 1)).marginal_likelihood(
            "y", X=X[:, :1], y=REAL, sigma=pt.exp(mu), dims="obs"
        ),
    ],
    ids=["MvNormal", "GaussianRandomWalk", "AR", "GP"],
)
def test_rows_drawn_together(rows_of):
    message = "'y' is not conditionally independent along dim 'obs'"
    refused(observed(rows_of), message, "batch_size=None", batch_size=5, minibatch_dim="obs")


def test_rows_drawn_together_without_dims():
    model = observed(lambda mu: pm.MvNormal("y", mu, np.eye(N), observed=REAL))
    refused(model, "'y'", "one draw of its distribution spans", "batch_size=None", batch_size=5)


def test_rows_that_depend_on_those_before():
    model = observed(lambda mu: pm.Normal("y", pt.cumsum(mu * X[:, 0]), 1, observed=REAL))
    refused(
        model, rf"'y' is not conditionally independent along the dim of length {N}",
        "batch_size=None", "self_check=False", batch_size=5,
    )  # fmt: skip


COMBINED = {
    "a cumulative sum": lambda mu, x: pt.cumsum(mu * x),
    "a sum or mean": lambda mu, x: mu * (x - x.mean()),
    "a concatenation": lambda mu, x: pt.concatenate([pt.zeros(2), mu * REAL[:-2]]),
    "a slice": lambda mu, x: mu * x - x[0],
    "assigning to some of them of 'mu'": lambda mu, x: pt.set_subtensor(x[3:6], mu),
    "a matrix product": lambda mu, x: pt.dot(pt.tril(pt.ones((N, N))) ** pt.exp(mu), x),
}


@pytest.mark.parametrize("what", COMBINED)
def test_what_combines_the_rows_is_named(what):
    def rows_of(mu):
        x = pm.Data("x", X[:, 0], dims="obs")
        pm.Normal("y", COMBINED[what](mu, x), 1, observed=REAL, dims="obs")

    cause = rf"'y' is not conditionally independent along dim 'obs': {what}.* over the rows"
    refused(observed(rows_of), cause, "Compute it beforehand", "batch_size=None", batch_size=5)


# ---- variables -----------------------------------------------------------------------------


def test_free_variable_for_each_row():
    model = observed(
        lambda mu: pm.Normal("y", pm.Normal("z", mu, 1, dims="obs"), observed=REAL, dims="obs")
    )
    refused(model, "'z'", "dim 'obs'", "Integrate it out", batch_size=5, minibatch_dim="obs")
    refused(model, "'z'|'y'", "minibatch_dim=|Integrate it out", batch_size=5)


def test_free_variable_for_each_row_without_dims():
    model = observed(lambda mu: pm.Normal("y", pm.Normal("z", mu, 1, shape=N), observed=REAL))
    refused(model, "'z' has an element for each row", r"latents=sgm.Gibbs\(\['z'\]\)", batch_size=5)


def test_all_free_variables_for_each_row_are_named():
    def rows_of(mu):
        x, z = pm.Normal("x", mu, 1, dims="obs"), pm.Normal("z", mu, 1, dims="obs")
        pm.Normal("y", x + z, observed=REAL, dims="obs")

    told = r"latents=sgm.Gibbs\(\['x', 'z'\]\)"
    refused(observed(rows_of), told, batch_size=5, minibatch_dim="obs")


MANY = 2100
"""Elements, more than an adapted step moves without batches."""


@pytest.mark.parametrize("named", [True, False])
def test_the_reason_why_there_are_no_batches_is_in_the_error(named):
    """Classical measurement error: what the message says to do works."""
    with pm.Model(coords={"row": range(MANY)}) as model:
        x = pm.Normal("x", 0, 1, **({"dims": "row"} if named else {"shape": MANY}))
        for name in ("x_seen", "y"):
            pm.Normal(name, x, 1, observed=np.ones(MANY), **({"dims": "row"} if named else {}))
    told = r"'x' has an element for each row.*latents=sgm\.Gibbs\(\['x'\]\)"
    refused(model, told, step_size="auto")
    refused(model, "batch_size=None: .*'auto'", step_size="auto", batch_size=None)


@pytest.mark.parametrize("people", [MANY, 40])
def test_table_of_groups(people):
    """Neither people nor items can be sliced: each value is a row of its own."""
    with pm.Model() as model:
        theta, ease = pm.Normal("theta", shape=people), pm.Normal("ease", shape=6)
        logit = theta[:, None] - ease[None, :]
        pm.Bernoulli("right", logit_p=logit, observed=np.ones((people, 6), int))
    shape = rf"{people} x 6"
    told = rf"'right' is a table \({shape}\).*'theta', 'ease'.*long form", rf"\({people}, 6\)"
    options = {"step_size": "auto"} if people == MANY else {"batch_size": 5}
    refused(model, *told, r"theta\[i0\], ease\[i1\]", "ravel", **options)


@pytest.mark.parametrize(("people", "advised"), [(600, True), (400, False)])
def test_a_table_with_effects_across_its_few_rows_is_advised_the_long_form(people, advised, caplog):
    """With all rows at each update there is no error, but many passes."""
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=people)
        logit = theta[:, None] - np.linspace(-1, 1, 6)
        pm.Bernoulli("right", logit_p=logit, observed=np.ones((people, 6), int))
    assert automatic_batch_size(model, None, people, many=False, needed=False) is None
    tell_of_rows(model, None)
    told = [message for message in caplog.messages if "long form" in message]
    assert len(told) == advised
    for message in told:
        assert "'right' is a table (600 x 6)" in message
        assert "all elements of 'theta'" in message
        assert "np.indices((600, 6)).reshape(2, -1), then theta[i0]" in message


LIKELIHOODS = {
    "a running sum": (
        lambda mu: pt.cumsum(-((mu - REAL) ** 2)),
        {},
        r"Pass dims=.* for 'term' \(shape \(23,\)\)",
    ),
    "a mean": (lambda mu: -((mu - REAL) ** 2).mean(), {}, "'term' is no sum over rows of data"),
    "added up by index": (
        lambda mu: pt.inc_subtensor(pt.zeros(4)[GROUP], -((mu - REAL) ** 2)),
        {"dims": "group"},
        "adding up by index of 'mu' .* as a table whose rows lie along dim 'group'.* mask",
    ),
    "other lengths": (
        lambda mu: -((mu - pt.stack([REAL[:20].sum()] * 4)) ** 2),
        {"dims": "group"},
        r"'term' is computed has rows along dim 'group' \(length 4\).* mask",
    ),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_potential_whose_rows_are_not_known(name):
    term, dims, told = LIKELIHOODS[name]
    refused(observed(lambda mu: pm.Potential("term", term(mu), **dims)), told, batch_size=2)


def test_discrete_variable():
    model = observed(lambda mu: pm.Normal("y", pm.Poisson("k", 3) + mu, observed=REAL))
    refused(
        model, r"'k' is discrete \(int64\)", r"latents=sgm\.Gibbs\(\['k'\]\)",
        r"pm\.Metropolis\(\[model\['k'\]\]\)", batch_size=5,
    )  # fmt: skip


def test_unknown_variable():
    model, other = MODELS["linear"](), MODELS["linear"]()
    refused(model, "'?w'? is not a free variable", "'w', 'sigma'", vars=[other["w"]])
    refused(model, "'?x'? is not a free variable", "'w', 'sigma'", vars=[model["x"]])


@pytest.mark.parametrize("batch_size", [None, 5])
def test_variable_without_gradient(batch_size):
    model = observed(lambda mu: pm.Normal("y", BlackBox()(mu), 1, observed=REAL))
    refused(
        model, "no gradient with respect to 'mu'", "another step", "differentiable",
        batch_size=batch_size,
    )  # fmt: skip


# ---- pm.Minibatch --------------------------------------------------------------------------


def with_minibatch(total_size):
    def rows_of(mu):
        batch = pm.Minibatch(REAL, batch_size=5)
        pm.Normal("y", mu, 1, observed=batch, total_size=total_size)

    return observed(rows_of)


def test_minibatch_without_total_size():
    refused(with_minibatch(None), "'y'", "pm.Minibatch without total_size=", "Pass total_size=")


def test_minibatch_and_batch_size():
    refused(with_minibatch(N), "batch_size=5 and pm.Minibatch", "one of them", batch_size=5)


def test_total_size_and_batch_size():
    model = observed(lambda mu: pm.Normal("y", mu, 1, observed=REAL, total_size=100))
    refused(model, "'y' has total_size=", "Remove total_size", batch_size=5)


def test_minibatch_larger_than_the_data():
    model = observed(
        lambda mu: pm.Normal("y", mu, 1, observed=pm.Minibatch(REAL, batch_size=50), total_size=[N])
    )
    refused(model, f"batch_size=50.*{N}")


def test_minibatch_of_an_expression():
    def rows_of(mu):
        batch = pm.Minibatch(2 * pm.Data("x", REAL), batch_size=5)
        pm.Normal("y", mu, 1, observed=batch, total_size=N)

    refused(observed(rows_of), "pm.Minibatch of the expression", "plain array or pm.Data")


# ---- values --------------------------------------------------------------------------------


@pytest.mark.parametrize("step_size", [0, -0.1, np.nan, np.inf])
def test_step_size(step_size):
    refused(MODELS["linear"](), rf"step_size.*positive.*{step_size!r}", step_size=step_size)


@pytest.mark.parametrize("batch_size", [None, 5])
def test_data_with_nan(batch_size):
    features = X.copy()
    features[3:5, 1] = np.nan
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", np.zeros_like(X), dims=("obs", "feature"))
        pm.Normal("y", x @ pm.Normal("w", dims="feature"), 1, observed=REAL, dims="obs")
    model.set_data("x", features)
    refused(model, "'x' has 2 NaN", "drop or impute", batch_size=batch_size)


def test_constant_data_with_nan():
    features = np.where(REAL > 1, np.nan, REAL)
    model = observed(lambda mu: pm.Normal("y", mu * features, 1, observed=REAL))
    refused(model, rf"^The array of shape \({N},\) has .* NaN", "drop or impute", batch_size=5)


def test_nan_that_comes_with_new_data():
    """In `setup_chain`: the data may have changed since the step was made."""
    model = MODELS["linear"]()
    source = gradient_source(model, model.value_vars, batch_size=5)
    model.set_data("x", np.full((N, 3), np.nan))
    with pytest.raises(ValueError, match=r"'x' has 69 NaN.*drop or impute"):
        source.check_data()


def test_integers_that_pm_data_has_cut():
    """PyMC stores 40000 as -25536 under float32: a group index that nobody would miss."""
    groups = 2_000 * np.arange(N)
    with pytensor.config.change_flags(floatX="float32"), pm.Model() as model:
        effect = pm.Normal("effect", shape=50_000)
        pm.Normal("y", effect[pm.Data("group", groups)], 1, observed=REAL.astype("float32"))
        assert model["group"].get_value().min() < 0
        # Said before it is compiled, which these tests forbid.
        said = pytest.warns(UserWarning, match=r"'group' has the type int16.*the array itself")
        with said, pytest.raises(pytest.fail.Exception, match="compiled before"):
            sgm.SGLD(step_size=0.1, batch_size=5, self_check=False)


def test_missing_counts():
    counts = np.ma.masked_equal(np.arange(N) % 3, 1)
    with pytest.warns(ImputationWarning):
        model = observed(lambda mu: pm.Poisson("y", pt.exp(mu), observed=counts, dims="obs"))
    refused(model, "'y' is discrete and has masked", "Drop those rows", batch_size=5)


@pytest.mark.parametrize("name", ["chain", "draw"])
def test_names_of_the_dims_of_results(name):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal(name), 1, observed=REAL)
    refused(model, f"'{name}' has the name of a dim", "rename it", batch_size=5)


def test_many_numbers_of_a_start_are_not_shown():
    """The variables that have no density, a few of them, and a few rows."""
    with pm.Model(coords=COORDS) as model:
        for k in range(8):
            pm.Uniform(f"u{k}", 1, 2, shape=20, default_transform=None, initval=np.zeros(20))
        pm.Normal("y", model["u0"].sum(), 1, observed=REAL, dims="obs")
    with (
        model,
        pytest.raises(SamplingError, match=r"'u4' \(at 0, 1, 2\), 3 more .*initval=") as told,
    ):
        sgm.SGLD(step_size=0.1, compile_kwargs={"mode": PYTHON})
    assert len(str(told.value)) < 400


def test_name_of_a_function_s_argument():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("self"), 1, observed=REAL)
    refused(model, "'self' has the name of an argument of PyTensor's", "rename it", batch_size=5)


def test_masked_data():
    masked = np.ma.masked_greater(REAL, 1)
    with pytest.warns(Warning, match="will be automatically imputed"):
        model = observed(lambda mu: pm.Normal("y", mu, 1, observed=masked, dims="obs"))
    refused(model, "'y' has masked", "Drop those rows", batch_size=5)


def test_nonfinite_start():
    model = observed(lambda mu: pm.Categorical("y", logit_p=pt.stack([mu, 0, 0]), observed=CLASS))
    start = {"mu": np.array(np.inf)}
    refused(model, "initial point", "'mu'", "inf", "initval=", error=SamplingError,
            batch_size=5, initial_point=start)  # fmt: skip


def test_start_without_a_gradient(monkeypatch):
    """The one error that takes a compiled update to find."""
    monkeypatch.undo()
    with pm.Model() as model:
        mu = pm.Flat("mu", initval=0.0)
        pm.Normal("y", pt.sqrt(mu), 1, observed=REAL)
    with model, pytest.raises(SamplingError, match=r"initial point the gradient of 'mu'.*initval="):
        sgm.SGLD(step_size=0.01, batch_size=5, compile_kwargs={"mode": "JAX"})


def edge(start):
    """A model with a density at mu = 0 and no finite gradient; b has one everywhere."""
    with pm.Model() as model:
        mu = pm.Flat("mu", initval=start)
        pm.Normal("y", pt.sqrt(mu) + pm.Normal("b"), 1, observed=REAL)
    return model


def test_start_without_a_gradient_whichever_way_it_moves_first(monkeypatch):
    """Before the gradient some samplers move by half a step, where there may be one."""
    monkeypatch.undo()
    for seed in range(4):
        with pytest.raises(SamplingError, match=r"the gradient of 'mu' is not finite.*initval="):
            sgm.MSGNHT_S(
                model=edge(0.0), step_size=0.01, batch_size=5, rng=seed,
                compile_kwargs={"mode": PYTHON},
            )  # fmt: skip


def test_chain_s_start_without_a_gradient(monkeypatch):
    """The step's own start has one, a chain's has none."""
    monkeypatch.undo()
    with edge(1.0) as model:
        step = sgm.SGLD(step_size=1e-4, batch_size=5, compile_kwargs={"mode": "JAX"})
    told = r"the gradient of 'mu' is not finite.*initval="
    options = dict(
        draws=3, tune=2, step=step, model=model, random_seed=1, compute_convergence_checks=False,
        initvals={"mu": 0.0}, progressbar=False,
    )  # fmt: skip
    with pytest.raises(SamplingError, match=told):
        pm.sample(chains=1, cores=1, **options)
    with pytest.raises(SamplingError, match=told):
        sgm.sample(chains=1, **options)
    with pytest.raises(SamplingError, match=told):
        sgm.sample(chains=2, chain_method="vectorized", **options)
    # A start that is good, and a step that is too large: another message.
    step.schedule = 1e12
    with pytest.raises(SamplingError, match="became non-finite at update"):
        sgm.sample(chains=2, chain_method="vectorized", **options | {"initvals": {"mu": 1.0}})


def test_impossible_data():
    """Its gradient is 0, so that nothing else would tell."""
    twice = np.where(np.isin(np.arange(N), [4, 9]), 2, CLASS % 2)
    model = observed(lambda mu: pm.Bernoulli("y", logit_p=mu, observed=twice))
    refused(model, r"'y' \(at 4, 9\)", "impossible", error=SamplingError, batch_size=5)
    model = observed(lambda mu: pm.HalfNormal("y", pm.math.exp(mu), observed=REAL))
    first = np.flatnonzero(REAL < 0)[0]
    refused(model, rf"'y' \(at {first}, ", error=SamplingError, batch_size=5, self_check=False)


def test_parameter_out_of_its_range():
    model = observed(lambda mu: pm.Normal("y", 0, mu, observed=REAL))
    refused(model, r"'y' \(sigma > 0 does not hold\)", "initval=", error=SamplingError,
            batch_size=5, initial_point={"mu": np.array(-1.0)})  # fmt: skip


@pytest.mark.parametrize("thin", [0, -1, 2.5, 10.0, "10", None, np.nan])
def test_thin(thin):
    refused(MODELS["linear"](), f"thin={thin!r} must be a whole number .*, at least 1", thin=thin)


@pytest.mark.parametrize("alpha", [-0.1, 1.0, 1, 1.5, np.nan])
def test_alpha(alpha):
    with MODELS["linear"](), pytest.raises(ValueError, match=rf"alpha must .*\[0, 1\).* {alpha!r}"):
        sgm.PSGLD(step_size=0.01, alpha=alpha)


@pytest.mark.parametrize("lam", [0, -1.0, np.nan, np.inf])
def test_lam(lam):
    with MODELS["linear"](), pytest.raises(ValueError, match=f"lam must be a positive.* {lam!r}"):
        sgm.PSGLD(step_size=0.01, lam=lam)
