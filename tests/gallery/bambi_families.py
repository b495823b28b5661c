"""Bambi's families of outcomes."""

from gallery.bambi_rows import ROW_DIM, built
from gallery.forms import accepted


@accepted(ROW_DIM)
def bernoulli():
    return built("binary ~ x + z", "bernoulli")


@accepted(ROW_DIM)
def negative_binomial():
    return built("count ~ x", "negativebinomial")


@accepted(ROW_DIM)
def gamma():
    return built("positive ~ x", "gamma", link="log")


@accepted(ROW_DIM)
def wald():
    return built("positive ~ x", "wald", link="log")


@accepted(ROW_DIM)
def beta():
    return built("share ~ x", "beta")


@accepted(ROW_DIM)
def student_t():
    return built("y ~ x", "t")


@accepted(ROW_DIM)
def vonmises():
    return built("angle ~ x", "vonmises")


@accepted(ROW_DIM)
def cumulative():
    return built("kind ~ x", "cumulative")
