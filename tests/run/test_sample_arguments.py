"""Arguments that cannot be are refused by name, value and remedy; NumPy's numbers are numbers."""

import inspect
import itertools
import re

import numpy as np
import pymc as pm
import pytest
from pymc.exceptions import SamplingError
from xarray import Dataset, DataTree

import pymc_sgmcmc as sgm
from pymc_sgmcmc import number_checks
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.run import parametrisation
from pymc_sgmcmc.run.unknown_arguments import INSTEAD, RENAMED
from pymc_sgmcmc.schedules import Constant

N = 12
Y = np.linspace(-1, 1, N)
IN_PYTHON = {"mode": PYTHON}
NO_NUMBERS = [True, np.True_, "a", "1", None, 1j, np.ones(2), [1.0], object(), 10**400, np.nan]
NO_SWITCHES = ["no", 0, 1.0, None, np.zeros(2, bool), []]


RUN_BEFORE = DataTree.from_dict(
    {"posterior": Dataset({"mu": (("chain", "draw"), np.ones((4, 9)))})}
)


def normal(observed=Y):
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Deterministic("twice", 2 * mu)
        pm.Normal("y", mu, 1, observed=observed)
    return model


def mixture():
    with pm.Model(coords={"obs": range(N)}) as model:
        centre = pm.Normal("centre", [-1, 1], 3)
        z = pm.Bernoulli("z", 0.5, dims="obs")
        pm.Normal("y", centre[z], 1, observed=Y, dims="obs")
    return model


def make(sampler=sgm.SGLD, model=None, vars=None, **options):
    options = {"step_size": 0.01, "batch_size": 4, "compile_kwargs": IN_PYTHON} | options
    return sampler(vars, model=model or normal(), **options)


@pytest.fixture(scope="module")
def step():
    return make()


# ---- the checks themselves -----------------------------------------------------------------


@pytest.mark.parametrize("value", [*NO_NUMBERS, 2.5, 10.0, np.float32(3), 0, -3, 10**25])
def test_no_whole_number(value):
    with pytest.raises(ValueError, match=r"n=.* must be a whole number of rows.*1"):
        number_checks.whole_number("n", value, 1, unit="rows")


@pytest.mark.parametrize("value", [5, np.int64(5), np.uint8(5), np.array(5)])
def test_whole_number(value):
    number = number_checks.whole_number("n", value, 1, 5)
    assert number == 5
    assert type(number) is int


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1.0, np.inf])
def test_no_positive_number(value):
    with pytest.raises(ValueError, match=r"h must be a positive finite number, got .*\. Try 1\."):
        number_checks.positive_number("h", value, "Try 1.")


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.int8(1), np.array(1.0)])
def test_positive_number(value):
    assert number_checks.positive_number("h", value) == 1.0
    assert number_checks.nonnegative_number("h", 0 * value) == 0.0


@pytest.mark.parametrize("value", NO_SWITCHES)
def test_neither_true_nor_false(value):
    with pytest.raises(ValueError, match=r"on=.* must be True or False"):
        number_checks.true_or_false("on", value)


@pytest.mark.parametrize("value", [True, np.True_, np.array(True)])
def test_true(value):
    assert number_checks.true_or_false("on", value) is True


# ---- where they are used -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        (sgm.SGHMC_E, "friction"), (sgm.SGHMC_S, "friction"), (sgm.SGNHT, "diffusion"),
        (sgm.MSGNHT_S, "diffusion"), (sgm.PSGLD, "alpha"), (sgm.PSGLD, "lam"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [True, "a", 1j, np.ones(2)])
def test_hyperparameters(sampler, name, value):
    with pytest.raises(ValueError, match=f"{name} must be a .*number.*, got "):
        make(sampler, **{name: value})


@pytest.mark.parametrize("value", [True, "0.1", 1j, np.ones(1), None])
def test_step_sizes(value, step):
    with pytest.raises(TypeError, match="step_size must be a number, a schedule or a callable"):
        make(step_size=value)
    with pytest.raises(TypeError, match="step_size must be a number, a schedule or a callable"):
        step.schedule = value


@pytest.mark.parametrize(
    "schedule",
    [
        lambda v: sgm.PolynomialDecay(a=v), lambda v: sgm.BlockDecay(v, every=2),
        lambda v: sgm.BlockDecay(0.1, every=v), lambda v: sgm.BlockDecay(0.1, every=2, factor=v),
        lambda v: sgm.Cyclical(v, period=2), lambda v: sgm.Cyclical(0.1, period=v),
        lambda v: sgm.Cyclical(0.1, period=2, floor=v),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [True, "a", np.inf])
def test_schedules(schedule, value):
    with pytest.raises(ValueError, match=r"(Decay|Cyclical)\(\w+=\) must be .*number.*, got "):
        schedule(value)


@pytest.mark.parametrize("name", ["replacement", "self_check", "blocked"])
def test_switches_of_a_step(name):
    with pytest.raises(ValueError, match=f"{name}='no' must be True or False"):
        make(**{name: "no"})


def test_other_switches(tmp_path):
    with pytest.raises(ValueError, match="gamma='no' must be True or False"):
        make(sgm.PSGLD, gamma="no")
    with pytest.raises(ValueError, match="path=3 must be the path of a folder"):
        sgm.ZarrStore(3)
    with pytest.raises(ValueError, match="overwrite='no' must be True or False"):
        sgm.ZarrStore(tmp_path / "run", overwrite="no")
    with pytest.raises(ValueError, match="autoregressive='no' must be True or False"):
        sgm.NeuralImportance(["z"], autoregressive="no")
    for value in [True, "a", np.nan]:
        with pytest.raises(ValueError, match="seconds must be a number of seconds"):
            sgm.ZarrStore(tmp_path / "run", seconds=value)
        with pytest.raises(ValueError, match="learning_rate must be a finite number"):
            sgm.NeuralImportance(["z"], learning_rate=value)


@pytest.mark.parametrize("name", ["n_samples", "burn_in"])
def test_numbers_of_latents(name):
    with pytest.raises(ValueError, match=f"{name}=True must be a whole number"):
        sgm.Gibbs(["z"], **{name: True})


def test_numbers_of_numpy_are_numbers():
    made = make(
        sgm.SGHMC_S, friction=np.array(1.0), step_size=np.array(0.1), thin=np.int64(2),
        batch_size=np.int32(3), replacement=np.True_,
    )  # fmt: skip
    made.step(made.model.initial_point())
    assert (made.thin, made.batch_size, made.replacement) == (2, 3, True)


def run(step, **options):
    options = {"draws": 3, "tune": 2, "chains": 1, "random_seed": 1, "quiet": True} | options
    return sgm.sample(step=step, model=step.model, compute_convergence_checks=False, **options)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("draws", True, "draws=True must be a whole number"),
        ("draws", 10**25, "draws=10{25} must be a whole number between 1 and 9"),
        ("tune", False, "tune=False must be a whole number"),
        ("chains", True, "chains=True must be a whole number"),
        ("cores", -3, "cores=-3 must be a whole number, at least 1"),
        ("cores", "a", "cores='a' must be a whole number"),
        ("blas_cores", 0, "blas_cores=0 must be a whole number, at least 1: .*'auto'"),
        ("random_seed", True, "random_seed=True is not allowed"),
        ("random_seed", {}, r"random_seed=\{\} must be an integer"),
        ("random_seed", {"a": 1}, r"random_seed=\{'a': 1\} must be an integer"),
        ("random_seed", [], r"random_seed=\[\] must be an integer"),
        ("random_seed", np.array([]), r"random_seed=array.* must be an integer"),
        ("var_names", 1, "var_names=1 must be a list of names"),
        ("initvals", 1.5, "initvals=1.5 must be a dict of initial values by variable"),
        ("initvals", "x", "initvals='x' must be a dict of initial values by variable"),
        ("initvals", ["mu"], r"initvals=\['mu'\] must be .* or a list with one such dict, or None"),
        ("initvals", {"mu": "a"}, "initvals: the value 'a' for 'mu' must be .*'prior', 'support_"),
        ("initvals", {"mu": np.array(1, object)}, "'mu' has the type object: it must have numbers"),
        ("initvals", {"twice": 1.0}, "initvals: 'twice' is a deterministic.*initial values: mu"),
        ("initvals", {"y": 1.0}, "initvals: the model has no variable 'y'. It has: mu"),
        (
            "initvals",
            RUN_BEFORE,
            r"initvals=<DataTree> must .* A draw of a run is \{rv.name: idata",
        ),
        ("initvals", [RUN_BEFORE], r"initvals=<list> must .* A draw of a run is \{rv.name: idata"),
        ("var_names", RUN_BEFORE, "no variable 'posterior'"),
        ("draws", RUN_BEFORE, "draws=<DataTree> must be a whole number"),
        ("idata_kwargs", RUN_BEFORE, "idata_kwargs=<DataTree> must be a dict"),
        ("init", "adapt_diag", r"init='adapt_diag' must .*metric.*MSGNHT_S\(adaptation='diag'\)"),
        ("chains", 10**9, "chains=1000000000 must be a whole number between 1 and 100000"),
        ("mp_ctx", "nonsense", "mp_ctx='nonsense' must be one of .*'spawn'"),
        ("mp_ctx", 3, "mp_ctx=3 must be one of .*, a context of multiprocessing, or None"),
        ("compile_kwargs", "x", "compile_kwargs='x' must be a dict such as"),
        ("chain_method", "threads", "chain_method='threads' must be one of 'sequential'"),
        ("var_names", [], r"var_names=\[\] would record nothing"),
        ("quiet", "no", "quiet='no' must be True or False"),
        ("resume", 0, "resume=0 must be True or False"),
        ("discard_tuned_samples", "no", "discard_tuned_samples='no' must be True or False"),
        ("keep_warning_stat", 1, "keep_warning_stat=1 must be True or False"),
        ("include_data", "no", "include_data='no' must be True or False"),
    ],
)
def test_arguments_of_sample(step, name, value, message, monkeypatch):
    """Refused before the default step is made, too."""
    monkeypatch.setattr(parametrisation, "default_step", lambda *_: pytest.fail("A step was made."))
    with pytest.raises(ValueError, match=message) as told:
        run(step, **{name: value})
    assert len(str(told.value)) < 500
    with pytest.raises(ValueError, match=message):
        sgm.sample(model=step.model, **{name: value})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("target_accept", r": it sets the step size of NUTS; .*MSGNHT_S\(target_bias=0\.02\)\."),
        ("nuts_sampler", r": it is an argument of NUTS, which pm\.sample runs, without step=\."),
        ("nuts", r": to move some variables by NUTS, pass it as a step, .*pm\.NUTS\(\[tau\]\)\]\."),
        ("n_init", ": a minibatch step's warm-up ends by itself, so leave it out."),
        ("return_inferencedata", ": the result is a DataTree in any case, so leave it out."),
        ("draw", r"\. Do you mean draws=\?"),
        ("start", r"\. Do you mean initvals=\?"),
        ("seed", r"\. Do you mean random_seed=\?"),
        (
            "batch_size",
            r": it is an argument of the step, step=sgm\.MSGNHT_S\(batch_size=\.\.\.\)\.",
        ),
        ("step_size", r": it is an argument of the step, step=sgm\.MSGNHT_S\(step_size=\.\.\.\)\."),
        ("xyz", r": see help\(sgm\.sample\)\."),
    ],
)
def test_arguments_that_sample_does_not_have(name, told):
    """One line each, before there is a model."""
    with pytest.raises(TypeError, match=rf"^sgm\.sample has no argument '{name}'{told}$"):
        sgm.sample(**{name: 0.9})


def test_every_argument_of_pymc_has_its_line():
    """And none that `sample` has."""
    known = inspect.signature(sgm.sample).parameters
    theirs = set(inspect.signature(pm.sample).parameters) - {"kwargs"}
    assert theirs - known.keys() <= INSTEAD.keys()
    assert not (INSTEAD.keys() | RENAMED.keys()) & known.keys()
    assert set(RENAMED.values()) <= known.keys()


def test_variables_to_record_may_be_given_themselves(step):
    tree = run(step, var_names=[step.model["mu"]])
    assert list(tree.posterior) == ["mu"]


def test_only_transformed_names_to_record():
    with pm.Model() as model:
        pm.Normal("y", 0, pm.HalfNormal("sigma"), observed=Y)
    with pytest.raises(ValueError, match=r"'sigma_log__'.*on its own scale: sigma\."):
        run(make(model=model), var_names=["sigma_log__"])


def test_a_store_cannot_be_a_file(step, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    for place in (path, path / "run.zarr"):
        with pytest.raises(FileExistsError, match=r"file is a file\. Choose another path"):
            run(step, trace=place)


# ---- variables and latents -----------------------------------------------------------------


def test_names_and_repeated_variables():
    model = normal()
    for vars in ["mu", ["mu"]]:
        with pytest.raises(ValueError, match=r"'mu' is a name.*model\['mu'\]"):
            make(model=model, vars=vars)
    with pytest.raises(ValueError, match="vars lists 'mu' 2 times"):
        make(model=model, vars=[model["mu"], model["mu"]])


@pytest.mark.parametrize("latents", [["z"], "z", sgm.Gibbs])
def test_latents_that_do_not_say_how(latents):
    with pytest.raises(
        TypeError, match=r"latents=\[.*\] does not say how.*sgm.Gibbs\(\[\.\.\.\]\)"
    ):
        make(model=mixture(), latents=latents)


def test_latents_named_twice():
    model = mixture()
    z = model["z"]
    for vars in ([z, z], ["z", z]):
        with pytest.raises(ValueError, match=r"'z' is listed .*list it once"):
            make(model=model, latents=sgm.Gibbs(vars))


@pytest.mark.parametrize("support", [[0], [0, 0.5], [0, 0], 3, [[0, 1]], [False, True], ["a", "b"]])
def test_support_of_no_use(support):
    with pytest.raises(ValueError, match=r"support=\{'z': .*\} must be a list of at least two"):
        sgm.Gibbs(["z"], support={"z": support})


def test_latents_by_no_variable():
    for name in ["support", "conditional"]:
        with pytest.raises(
            ValueError, match=rf"{name}=\[0\] must be a dict with variables as keys"
        ):
            sgm.Gibbs(["z"], **{name: [0]})
    with pytest.raises(ValueError, match=r"conditional=\{'z': 3\}: pass a function"):
        sgm.Gibbs(["z"], conditional={"z": 3})


def test_compile_kwargs():
    with pytest.raises(ValueError, match="compile_kwargs='JAX' must be a dict"):
        make(compile_kwargs="JAX")


# ---- data ----------------------------------------------------------------------------------


def test_new_rows_of_the_marginal_likelihood():
    with pm.Model(coords={"obs": range(N)}) as model:
        w = pm.Normal("w")
        z = pm.Bernoulli("z", 0.5, dims="obs")
        pm.Normal("x", w * z, 1, observed=Y, dims="obs")
        pm.Poisson("y", pm.math.exp(w * z), observed=np.arange(N), dims="obs")

    def p(**data):
        return sgm.log_marginal_likelihood(
            {"w": 1.0}, ["z"], data=data.get("data", data), model=model, method="importance",
            n_samples=2, compile_kwargs=IN_PYTHON,
        )  # fmt: skip

    for data, message in [
        ({"x": [0.0, 1.0], "y": [0.5, 1.0]}, "'y' has the value 0.5, .* int.*whole numbers"),
        ({"x": [0.0, np.nan], "y": [0, 1]}, "'x' has 1 NaN values"),
        ({"x": ["a", "b"], "y": [0, 1]}, "'x' has the type <U1: it must have numbers"),
        ({"data": 0.5}, "data=0.5 must be a dict of arrays"),
    ]:
        with pytest.raises(ValueError, match=message):
            p(**data)
    assert np.isfinite(p(x=[0, 1], y=[0.0, 2.0]).log_p).all()


class Batches:
    """A stream that tells more rows than it has."""

    def __init__(self, batches, batch_size=1):
        self.batches, self.total_size, self.batch_size = batches, N, batch_size

    def __iter__(self):
        return iter(self.batches())


@pytest.mark.parametrize("key", [1, None, ("y", 1), ()])
def test_streams_for_no_container(key):
    with pytest.raises(
        TypeError, match=rf"data= has the key {re.escape(repr(key))}: pass the name"
    ):
        sgm.StreamedData({key: Y})


def test_streams_of_letters():
    for text in ("abc", b"abc"):
        with pytest.raises(TypeError, match=r"data\['y'\] is a (str|bytes): pass an array"):
            sgm.StreamedData({"X": Y, "y": text})
    with pytest.raises(TypeError, match="data= is a str: pass an array"):
        sgm.StreamedData("abc")


def test_data_beside_a_step():
    with pytest.raises(ValueError, match="data= is for the default step: pass it to the step"):
        sgm.sample(step=object(), data={"y": Y}, model=stream_model())


def test_streams_of_nothing():
    def empty(n=3):
        return itertools.repeat(np.empty(0), n)

    with pytest.raises(ValueError, match=r"data\['y'\] ended after 0 rows"):
        sgm.StreamedData({"y": Batches(empty)})
    with pytest.raises(ValueError, match=r"data\['y'\] yields no rows"):
        sgm.StreamedData({"y": Batches(empty, 5 * N)})
    with pytest.raises(ValueError, match=r"data\['y'\] yields empty batches without end"):
        sgm.StreamedData({"y": Batches(lambda: empty(10**6))})

    begun = itertools.count()

    def passes():
        n = next(begun)
        assert n < 100, "a stream without rows is read again and again"
        return [Y] if n < 6 else []

    dries_up = Batches(passes, 5 * N)
    made = make(data={"y": dries_up}, model=stream_model())

    def go_on():
        for _ in range(20):
            made.step(made.model.initial_point())

    with pytest.raises(ValueError, match=r"data\['y'\] yields no rows in this epoch instead of 12"):
        go_on()


def stream_model():
    with pm.Model() as model:
        pm.Normal("likelihood", pm.Normal("mu"), 1, observed=pm.Data("y", Y[:5]))
    return model


@pytest.mark.parametrize("rows", [Y.astype(object), Y.astype(str), Y + 1j])
def test_streams_of_no_numbers(rows):
    with pytest.raises(ValueError, match=r"data\['y'\] has the type .*real numbers"):
        make(data={"y": rows}, model=stream_model())


def test_infinite_rows_of_a_stream():
    rows = Y.copy()
    rows[7] = np.inf
    infinite = r"the rows just read of data\['y'\] have infinite values: drop or replace them"
    with pytest.raises(SamplingError, match=rf"gradient of 'mu' is not finite \({infinite}"):
        make(data={"y": np.full(N, np.inf)}, model=stream_model())
    # With this seed the batch that is tried at construction is without row 7.
    made = make(data={"y": rows}, model=stream_model(), rng=2)
    point, said = made.model.initial_point(), []
    for _ in range(5):
        point, [stats] = made.step(point)
        said.append(stats["warning"])
    [warning] = [w for w in said if w is not None]
    assert re.search(infinite, warning.message)


# ---- a step that is made -------------------------------------------------------------------


def test_what_is_set_is_checked(step):
    for value in [0, 2.5, True, 10**25]:
        with pytest.raises(ValueError, match=r"thin=.* must be a whole number"):
            step.thin = value
    with pytest.raises(ValueError, match="replacement='no' must be True or False"):
        step.replacement = "no"
    for value in [-1.0, np.nan]:
        with pytest.raises(ValueError, match="step_size must be a positive finite number"):
            step.schedule = value
    with pytest.raises(AttributeError, match="batch_size"):  # compiled into the updates
        step.batch_size = 6


def test_a_schedule_takes_effect_at_once():
    step = make(thin=3)
    point = step.model.initial_point()

    def step_size():
        return step.step(point)[1][0]["step_size"]

    assert step_size() == step_size() == 0.01
    step.schedule = Constant(0.02)
    assert step_size() == 0.02
    step.schedule = 0.005
    assert step_size() == 0.005
    step.schedule = lambda t: 1e-3 * (t + 1)
    assert step_size() == pytest.approx(1e-3 * 15)  # of the fifth draw's last update


def test_schedules_of_groups():
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", a + b, 1, observed=Y)
        groups = [sgm.SGLD.on([a], step_size=0.1), sgm.SGHMC_S.on([b], step_size=0.2)]
        step = sgm.Groups(groups, batch_size=4, compile_kwargs=IN_PYTHON)
    for value in [0.1, [0.1], [0.1, 0.2, 0.3], Constant(0.1)]:
        with pytest.raises(ValueError, match="must be a list of 2 step sizes or schedules"):
            step.schedule = value
    step.schedule = [0.3, sgm.PolynomialDecay(a=0.4)]
    _, [stats] = step.step(model.initial_point())
    assert (stats["sgld_step_size"], stats["sghmc_s_step_size"]) == (0.3, 0.4)
    assert "SGLD(step_size=0.3)" in repr(step)
