"""The updates' normals: bits, distribution and independence on each backend."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random.type import random_generator_type
from samplers import BACKENDS
from scipy import stats

from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.backends.random_operations import Normals
from pymc_sgmcmc.noise import NoiseStream

every_backend = pytest.mark.parametrize("mode", BACKENDS)
both_floats = pytest.mark.parametrize("dtype", ["float32", "float64"])

# Random123's known answers for Threefry-2x32 with 13 rounds: key, counter, words.
ONES = 2**32 - 1
KNOWN = [
    ((0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
    ((ONES, ONES), (ONES, ONES), (0xFD36D048, 0x2D17272C)),
]


def drawer(mode, dtype, n):
    """A function that draws ``n`` normals: each call goes on with the same generator."""
    rng = random_generator_type("rng")
    stream = NoiseStream(rng)
    (z,) = stream.normals_like([pt.tensor(shape=(n,), dtype=dtype)])
    mutable = pytensor.In(rng, mutable=True, borrow=True)
    backend = backend_of(pytensor.compile.mode.get_mode(mode))
    draw = pytensor.function([mutable], [pytensor.Out(stream.rng, borrow=True), z], mode=mode)
    draw.trust_input = True
    state = {"rng": backend.generator(np.random.default_rng(5))}

    def next_normals():
        state["rng"], z = draw(state["rng"])
        return np.asarray(z)

    return next_normals


@pytest.mark.parametrize(("key", "counter", "words"), KNOWN)
def test_bits_are_those_of_random123(key, counter, words):
    from jax.numpy import uint32 as jax_uint32
    from numba import uint32

    from pymc_sgmcmc.backends import normals_numba, random_jax

    numba_words = normals_numba.threefry(*map(uint32, key), *map(uint32, counter))
    assert tuple(map(int, numba_words)) == words
    jax_words = random_jax.threefry([*map(jax_uint32, key)], *map(jax_uint32, counter))
    assert tuple(map(int, jax_words)) == words


@every_backend
@both_floats
def test_distribution(mode, dtype):
    n = 1_000_001  # odd: the last has no partner
    draw = drawer(mode, dtype, n)
    z = np.concatenate([draw(), draw()]).astype("float64")
    assert z.size == 2 * n
    # Kolmogorov's distance: beyond 2.2 / sqrt(size) once in 8000.
    assert stats.kstest(z, "norm").statistic < 2.2 / np.sqrt(z.size)
    # Moments 1 to 6 within 4 standard errors; E z^2k = (2k - 1)!!
    even = {2: 1, 4: 3, 6: 15, 8: 105, 10: 945, 12: 10395}
    for k in range(1, 7):
        mean, second = even.get(k, 0), even[2 * k]
        assert abs((z**k).mean() - mean) < 4 * np.sqrt((second - mean**2) / z.size), k
    # Counts in the tails, within 4 Poisson standard deviations.
    for bound in (3, 4, 4.5):
        expected = z.size * stats.norm.sf(bound)
        for count in ((z > bound).sum(), (z < -bound).sum()):
            assert abs(count - expected) < 4 * np.sqrt(expected) + 1, bound


@every_backend
@both_floats
def test_independence(mode, dtype):
    """Neighbours, halves (numba draws in pairs), calls: also of squares, which signs would hide."""
    n = 1_000_000
    draw = drawer(mode, dtype, n)
    z, after = draw().astype("float64"), draw().astype("float64")
    assert (z == after).mean() < 1e-4
    half = n // 2
    for a, b in [(z[1:], z[:-1]), (z[:half], z[half:]), (z, after), (z[1:], after[:-1])]:
        for f in (lambda x: x, np.abs, lambda x: x * x, np.sign):
            # A correlation of independent draws has the standard error 1 / sqrt(their number).
            r = np.corrcoef(f(a), f(b))[0, 1]
            assert abs(r) < 4 / np.sqrt(a.size)


@pytest.mark.slow(3)
@both_floats
def test_no_value_comes_too_often(dtype):
    """About as many different values as float32's words, or float64's, have."""
    z = drawer("NUMBA", dtype, 1_000_000)()
    assert np.isfinite(z).all()
    assert np.unique(z).size > (0.9 if dtype == "float32" else 0.999999) * z.size


@pytest.mark.parametrize("n", [1, 2, 3, 124])
def test_any_number(n):
    for mode in BACKENDS:
        z = drawer(mode, "float64", n)()
        assert z.shape == (n,)
        assert np.unique(z).size == n


@both_floats
def test_mapped_over_chains_each_draws_what_it_would_alone(dtype):
    jax = pytest.importorskip("jax")
    drawer("JAX", dtype, 2)  # PyTensor sets JAX's 64-bit mode
    from pymc_sgmcmc.backends.random_jax import normals

    keys = np.uint32([[1, 2], [3, 4], [2, 1]])
    together = jax.vmap(lambda key: normals(key, 1001, dtype))(keys)
    alone = [normals(key, 1001, dtype) for key in keys]
    np.testing.assert_allclose(together, alone, rtol=0, atol=20 * np.finfo(dtype).eps)
    assert not np.allclose(together[0], together[2])


@pytest.mark.slow(2)
def test_a_call_takes_64_random_bits_for_its_key():
    """The generator's next word, low half first; the bits of ten normals are those it gives."""
    from numba import uint32

    from pymc_sgmcmc.backends import normals_numba

    word = np.random.default_rng(7).bit_generator.random_raw()
    z = normals_numba.draw_normals["float32"](np.random.default_rng(7), 10)
    for k in range(5):
        a, b = normals_numba.threefry(
            uint32(word & 0xFFFFFFFF), uint32(word >> 32), uint32(0), uint32(k)
        )
        radius = np.sqrt(-2 * np.log((a + 0.5) / 2**32))
        s = np.int32(np.uint32(b)) / 2**31
        assert z[k] == pytest.approx(radius * np.sin(np.pi / 2 * s), rel=1e-4)


@pytest.mark.parametrize(("platform", "stored"), [("cpu", True), ("cuda", False)])
def test_only_cpus_store_what_they_draw(platform, stored):
    jax = pytest.importorskip("jax")

    from pymc_sgmcmc.backends.random_jax import jax_sample_normals

    stream = NoiseStream(random_generator_type("rng"))
    node = stream.draw(Normals(), 1001, dtype="float32").owner
    sample = jax.vmap(lambda key: jax_sample_normals(node.op, node)(key, None, "float32", 1001))
    keys = np.zeros((2, 2), "uint32")
    lowered = jax.jit(sample).trace(keys).lower(lowering_platforms=(platform,))
    assert ("optimization_barrier" in lowered.as_text()) == stored
