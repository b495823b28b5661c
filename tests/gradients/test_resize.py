"""Models whose graphs have the number of rows baked in: cut into batches, and still exact."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.sparse
import pytensor.tensor as pt
import pytest
import scipy.sparse
from models import BINARY, CLASS, COORDS, COUNT, PAIRS, REAL, N, X
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.traversal import ancestors
from test_gradients import assert_unbiased

from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.gradients.resize import folded, resized

POSITIVE = np.exp(REAL)


def linear(name="w", columns=None, scale=1.0):
    """X times weights."""
    return pt.dot(X, pm.Normal(name, 0, scale, shape=3 if columns is None else (3, columns)))


# ---- operations that hold a graph inside ---------------------------------------------------


def softmax():
    pm.Categorical("y", p=pm.math.softmax(linear(columns=3), axis=1), observed=CLASS)


def dirichlet_multinomial():
    counts = np.random.default_rng(1).multinomial(9, [0.2, 0.3, 0.5], size=N)
    pm.DirichletMultinomial("y", n=9, a=pt.exp(linear(columns=3)), observed=counts)


def hurdle_with_predictors():
    psi = pm.math.sigmoid(linear("v"))
    pm.HurdleNegativeBinomial("y", psi, mu=pt.exp(linear()), alpha=2.0, observed=COUNT)


def censored_by_row():
    upper = REAL + (np.arange(N) % 3)
    pm.Censored("y", pm.Normal.dist(linear(), 1), None, upper, observed=REAL)


def truncated_by_row():
    rows = pm.Gamma.dist(2, pt.exp(linear(scale=0.3)))
    pm.Truncated("y", rows, lower=POSITIVE / 2, observed=POSITIVE)


def mixture_with_weights_by_row():
    weights = pm.math.softmax(linear(columns=2), axis=-1)
    parts = [pm.Normal.dist(pm.Normal("mu"), 1), pm.StudentT.dist(4, mu=linear("v"), sigma=2)]
    pm.Mixture("y", weights, parts, observed=REAL)


def random_of_a_custom_distribution():
    def exponential_of(mu, size):
        return pt.exp(pm.Normal.dist(mu, 1, size=size))

    pm.CustomDist("y", linear(), dist=exponential_of, observed=POSITIVE)


def discrete_choice():
    a, b = pm.Normal("a", shape=2), pm.Normal("b")
    utilities = [a[0] + b * X[:, 0], a[1] + b * X[:, 1], np.zeros(N)]
    pm.Categorical("y", p=pm.math.softmax(pt.stack(utilities).T, axis=1), observed=CLASS)


# ---- lengths, and what is computed from constants alone ------------------------------------


def ones_and_zeros():
    w = pm.Normal("w", shape=2)
    design = pt.stack([pt.ones(N), X[:, 0]], axis=1)
    pm.Normal("y", design @ w + pt.zeros(N), 1, observed=REAL)


def filled_and_broadcast():
    a, b = pm.Normal("a"), pm.Normal("b", shape=3)
    utilities = pt.full((N, 1), a) * X + pt.broadcast_to(b, (N, 3)) + linear().reshape((N, 1))
    pm.Categorical("y", p=pm.math.softmax(utilities, axis=-1), observed=CLASS)


def centred_constants():
    """The mean is over all rows, whatever the batch."""
    x = pt.as_tensor(X)
    w = pm.Normal("w", shape=3)
    pm.Normal("y", (x - x.mean(axis=0)) @ w / x.shape[0], 1, observed=REAL)


def hsgp():
    gp = pm.gp.HSGP(m=[4], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, pm.HalfNormal("scale", 1)))
    pm.Normal("y", gp.prior("f", X=X[:, :1]), 1, observed=REAL)


# ---- sparse matrices -----------------------------------------------------------------------

SPARSE = scipy.sparse.csr_matrix(X * (X > 0.3))


def sparse():
    """Rows of 0 to 3 entries."""
    w, v = pm.Normal("w", shape=(3, 1)), pm.Normal("v", shape=(3, 2))
    design = pytensor.sparse.as_sparse_variable(SPARSE)
    mu = pytensor.sparse.structured_dot(design, w)[:, 0]
    spread = pt.exp(pytensor.sparse.dot(design, v)).sum(axis=1)
    pm.Normal("y", mu, spread, observed=REAL)


def test_sparse_matrix_from_containers():
    """Their values are read once, so that later ones would be ignored."""
    with pm.Model() as model:
        containers = [
            pm.Data(name, getattr(SPARSE, name)) for name in ("data", "indices", "indptr")
        ]
        design = pytensor.sparse.CSR(*containers, pt.as_tensor(np.array(SPARSE.shape)))
        mu = pytensor.sparse.structured_dot(design, pm.Normal("w", shape=(3, 1)))[:, 0]
        pm.Normal("y", mu, 1, observed=REAL)
    with pytest.raises(ValueError, match=r"made from the containers.*'indptr'.*as_sparse_variable"):
        gradient_source(model, model.value_vars, batch_size=5)


def sparse_transposed():
    design = pytensor.sparse.as_sparse_variable(SPARSE.T.tocsr()).T
    mu = pytensor.sparse.structured_dot(design, pm.Normal("w", shape=(3, 1)))[:, 0]
    pm.Normal("y", mu, 1, observed=REAL)


def test_sparse_matrix_that_is_no_left_factor():
    with pm.Model() as model:
        design = pytensor.sparse.as_sparse_variable(SPARSE.T.tocsr())
        mu = pytensor.sparse.dot(pm.Normal("w", shape=(1, 3)), design)[0]
        pm.Normal("y", mu, 1, observed=REAL)
    with pytest.raises(ValueError, match=r"sparse matrix of shape \(3, 23\).*left factor"):
        gradient_source(model, model.value_vars, batch_size=5)


# ---- arrays that a function has captured ---------------------------------------------------


def captured_array():
    offset = X[:, 2]
    pm.CustomDist(
        "y", linear(), logp=lambda y, mu: -pt.log1p((y - mu - offset) ** 2), observed=REAL
    )


def captured_container():
    offset = pm.Data("offset", X[:, 2], dims="obs")
    pm.CustomDist(
        "y", linear(), logp=lambda y, mu: -pt.log1p((y - mu - offset) ** 2), observed=REAL
    )


# ---- which dim holds the rows --------------------------------------------------------------


def individuals_by_interval():
    """The length of a free variable's dim is not that of the rows (survival in intervals)."""
    rng = np.random.default_rng(2)
    events, exposure = rng.integers(2, size=(N, 3)), rng.random((N, 3))
    hazard = pt.outer(pt.exp(pm.Normal("b") * X[:, 0]), pm.Gamma("base", 1, 1, dims="feature"))
    pm.Poisson("y", exposure * hazard, observed=events)


def more_scalars_than_a_universal_function_takes():
    scalars = [pm.Normal(f"b{i}") for i in range(40)]
    pm.Bernoulli("y", logit_p=pt.add(*scalars) + sum(scalars) * X[:, 0], observed=BINARY)


@pytest.mark.parametrize(
    "rows_of",
    [
        softmax,
        dirichlet_multinomial,
        hurdle_with_predictors,
        censored_by_row,
        truncated_by_row,
        mixture_with_weights_by_row,
        random_of_a_custom_distribution,
        discrete_choice,
        ones_and_zeros,
        filled_and_broadcast,
        centred_constants,
        hsgp,
        sparse,
        sparse_transposed,
        captured_array,
        captured_container,
        individuals_by_interval,
        more_scalars_than_a_universal_function_takes,
    ],
)
def test_average_over_batches_is_the_full_gradient(rows_of):
    with pm.Model(coords=COORDS) as model:
        rows_of()
    assert_unbiased(model, gradient_source(model, model.value_vars, batch_size=5))


NAMES = ["long", "int", "floatX", "O", "S1", "i4", "1|g_sigma", "p(s, n)"]
"""Names that NumPy reads as types, or fails to."""


@pytest.mark.parametrize("name", NAMES)
def test_names_that_numpy_reads_as_types(name):
    with pm.Model(coords=COORDS) as model:
        x = pm.Data(name, X, dims=("obs", "feature"))
        pm.Normal("y", x @ pm.Normal("w", shape=3), 1, observed=REAL, dims="obs")
    source = gradient_source(model, model.value_vars, batch_size=5)
    assert [v.name for array, v in source.data if array is x] == [name]


def test_new_data_in_a_captured_container():
    rng = np.random.default_rng(5)
    with pm.Model(coords={"obs": np.arange(N)}) as model:
        x, target = pm.Data("x", REAL, dims="obs"), pm.Data("target", PAIRS[:, 0], dims="obs")
        offset = pm.Data("offset", PAIRS[:, 1], dims="obs")
        pm.CustomDist(
            "y",
            pm.math.softmax(pt.stack([x * pm.Normal("w"), x]), axis=0)[0],
            logp=lambda y, mu: -pt.log1p((y - mu - offset) ** 2),
            observed=target,
            dims="obs",
        )
    source = gradient_source(model, model.value_vars, batch_size=5)
    new = {name: rng.normal(size=31) for name in ("x", "target", "offset")}
    pm.set_data(new, model=model, coords={"obs": np.arange(31)})
    assert [r.n_rows for r in source.rows] == [31]
    assert_unbiased(model, source)


# ---- the rebuilding itself -----------------------------------------------------------------


def test_rows_computed_one_by_one_are_not_held_in_memory():
    x = pt.constant(X)
    by_row = pt.log(x[:, 0] ** 2)[:, None] + x
    assert not folded([by_row * pt.scalar()], N, stop=[])
    cumulated = pt.cumsum(x, axis=0)
    [value] = folded([cumulated * pt.scalar()], N, stop=[]).values()
    np.testing.assert_allclose(value.data, np.cumsum(X, axis=0))


def test_numbers_that_are_no_lengths_stay():
    """N as a factor is not a length."""
    a, size = pt.dscalar("a"), pt.lscalar("size")
    [out] = resized([pt.full((N, 2), a) * N], {a: a}, N, size)
    assert out.type.shape == (None, 2)
    np.testing.assert_array_equal(out.eval({a: 2.0, size: 3}), np.full((3, 2), 2.0 * N))


def test_gradients_of_a_users_own_operation_stay():
    """One with a gradient of its own keeps it; another is no more than the graph inside."""
    x, new = pt.tensor("x", shape=(N,)), pt.vector("new")
    own = OpFromGraph([x], [x * 2], pullback=lambda inputs, outputs, grads: [grads[0] * 7])
    plain = OpFromGraph([x], [x * 2])
    [kept, opened] = resized([own(x).sum(), plain(x).sum()], {x: new}, N, pt.lscalar())
    value = {new: np.ones(3)}
    assert pytensor.grad(kept, new).eval(value).tolist() == [7, 7, 7]
    assert pytensor.grad(opened, new).eval(value).tolist() == [2, 2, 2]
    operations = {type(v.owner.op) for v in ancestors([opened]) if v.owner}
    assert OpFromGraph not in operations


def test_what_is_known_of_a_matrix_stays_known():
    """PyTensor spares the Cholesky decomposition of L L' where L is marked as triangular."""
    x, new = pt.tensor("x", shape=(N, N)), pt.matrix("new")
    factor = pt.tril(x) * 1
    factor.tag.lower_triangular = True
    [out] = resized([factor], {x: new}, N, pt.lscalar())
    assert out is not factor
    assert out.tag.lower_triangular
