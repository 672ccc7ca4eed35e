"""Noise: the right law and no other, exactly rounded, never repeated, refused when in doubt.

Statistical thresholds are p = 1e-20: a correct sampler fails once in far more runs than will ever
happen, and each test shows its power by rejecting 2/3 and 3/2 of the scale at the same threshold.
"""

import copy
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha512

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from tacit.errors import NoiseError
from tacit.privacy import noise
from tacit.privacy.noise import NoiseSource, key_stream

P = 1e-20
SAMPLERS = ("gaussian", "laplace", "geometric")


def at_most(name, scale, k):
    """P(K <= k), from the textbook: an oracle that shares nothing with the sampler."""
    if name == "gaussian":
        return stats.norm.cdf((k + 0.5) / scale)
    if name == "laplace":
        return stats.laplace.cdf((k + 0.5) / scale)
    q = np.exp(-1 / scale)
    return np.where(k >= 0, 1 - q ** (np.abs(k) + (k >= 0)) / (1 + q), q ** np.abs(k) / (1 + q))


def chi_square(name, scale, drawn):
    """p-value of up to 60 cells of roughly equal probability under the claimed law."""
    spread = np.linspace(0.01, 0.99, 60)
    edges = np.unique(np.round(scale * stats.laplace.ppf(spread)).astype(np.int64))
    cells = np.diff(np.concatenate([[0.0], at_most(name, scale, edges), [1.0]]))
    counts = np.bincount(np.searchsorted(edges, drawn), minlength=len(cells))
    kept = cells * len(drawn) > 5
    counts = np.append(counts[kept], counts[~kept].sum())
    cells = np.append(cells[kept], max(cells[~kept].sum(), 1e-12))
    expected = len(drawn) * cells
    return stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), len(kept))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("scale", [0.6, 3.0, 1000.0, 163840.0, 1e9])
def test_law_accepts_its_scale_and_rejects_two_thirds_and_three_halves(name, scale):
    drawn = getattr(NoiseSource.fresh(), name)(scale, 60_000)
    assert drawn.dtype == np.int64
    assert chi_square(name, scale, drawn) > P
    assert chi_square(name, scale * 2 / 3, drawn) < P
    assert chi_square(name, scale * 3 / 2, drawn) < P


@pytest.mark.parametrize("scale", [5.0, 163840.0])
def test_gaussian_variance_by_chi_square(scale):
    drawn = NoiseSource.fresh().gaussian(scale, 50_000).astype(float)

    def two_sided(std):
        square = (drawn**2).sum() / (std**2 + 1 / 12)  # rounding adds the variance of one step
        return 2 * min(stats.chi2.cdf(square, len(drawn)), stats.chi2.sf(square, len(drawn)))

    assert two_sided(scale) > P
    assert two_sided(scale * 2 / 3) < P
    assert two_sided(scale * 3 / 2) < P


def test_gaussian_by_kolmogorov_smirnov():
    drawn = NoiseSource.fresh().gaussian(1e7, 30_000) / 1e7
    assert stats.kstest(drawn, "norm").pvalue > P
    assert stats.kstest(drawn * 3 / 2, "norm").pvalue < P
    assert stats.kstest(drawn * 2 / 3, "norm").pvalue < P


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("mass", [1e-2, 1e-3, 1e-4])
def test_both_tails_have_their_mass(name, mass):
    scale, count = 1e6, 1_000_000
    law = stats.norm if name == "gaussian" else stats.laplace
    cut = scale * law.isf(mass)
    drawn = getattr(NoiseSource.fresh(), name)(scale, count)
    for tail in (drawn > cut, drawn < -cut):
        assert stats.binomtest(int(tail.sum()), count, mass).pvalue > P
        assert stats.binomtest(int(tail.sum()), count, mass * 3).pvalue < P


@pytest.mark.parametrize("name", SAMPLERS)
def test_neighbours_blocks_and_calls_are_uncorrelated(name):
    source = NoiseSource.fresh()
    one = getattr(source, name)(1000.0, 4 * noise._CHUNK).astype(float)
    two = getattr(source, name)(1000.0, 4 * noise._CHUNK).astype(float)
    limit = stats.norm.isf(P / 2)
    lags = (1, 2, 3, noise._CHUNK // 2, noise._CHUNK, 2 * noise._CHUNK)
    pairs = [(one[:-lag], one[lag:]) for lag in lags] + [(one, two), (one, two[::-1])]
    for transform in (np.copy, np.abs, np.sign):
        for a, b in pairs:
            # Heavy tails make the fourth moments, not the correlation's size, the larger error.
            a, b = transform(a), transform(b)
            assert abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(len(a)) < limit
    assert abs(np.corrcoef(one, one + two)[0, 1]) * np.sqrt(len(one)) > limit  # power


def test_stream_is_aes_256_ctr():
    # Provenance: NIST SP 800-38A (2001), F.5.5 CTR-AES256.Encrypt.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    stream = key_stream(key, counter, 64)
    assert bytes(a ^ b for a, b in zip(stream, plain, strict=True)) == cipher


def seeded_keys(seed):
    keys = sha512(f"tacit seeded noise {seed}".encode()).digest()
    return keys[:32], keys[32:]


def test_words_are_the_key_stream_in_order():
    source = NoiseSource.seeded(5)
    parts = [source._words(count)[0] for count in (3, 1, 6)]
    expected = np.frombuffer(key_stream(seeded_keys(5)[0], bytes(16), 80), "<u8")
    np.testing.assert_array_equal(np.concatenate(parts), expected)


def uniform_oracle(words, first, keys, bits=64):
    ecb = Cipher(algorithms.AES(keys[1]), modes.ECB()).encryptor()
    for j, word in enumerate(words):
        tail = int.from_bytes(ecb.update((first + j).to_bytes(16, "big")), "big")
        yield mpmath.mpf(2 * ((int(word) >> (64 - bits) << 128) | tail) + 1) / mpmath.mpf(2) ** (
            bits + 129
        )


@pytest.mark.parametrize("scale", [1.5, 163840.0, 2.0**38])
def test_every_draw_is_the_exactly_rounded_variable(scale):
    # An independent oracle (mpmath, 60 digits) from the words alone. At 2^38 float64 cannot decide
    # about one draw in a hundred, so both paths and the bound between them are exercised.
    count, keys = 600, seeded_keys(9)
    words = np.frombuffer(key_stream(keys[0], bytes(16), 16 * count), "<u8")
    with mpmath.workdps(60):
        u = list(uniform_oracle(words, 0, keys))
        signed = list(uniform_oracle(words[:count], 0, keys, bits=63))
        half = mpmath.mpf(1) / 2
        floors = [int(mpmath.floor(-scale * mpmath.log(v))) for v in u]
        gauss = []
        for a, b in zip(u[0:count:2], u[1:count:2], strict=True):
            radius = scale * mpmath.sqrt(-2 * mpmath.log(a))
            gauss += [
                radius * mpmath.cos(2 * mpmath.pi * b),
                radius * mpmath.sin(2 * mpmath.pi * b),
            ]
        expected = {
            "gaussian": [int(mpmath.floor(z + half)) for z in gauss],
            "laplace": [
                int(mpmath.floor(-scale * mpmath.log(v) + half)) * (-1 if int(w) & 1 else 1)
                for v, w in zip(signed, words[:count], strict=True)
            ],
            "geometric": [a - b for a, b in zip(floors[0::2], floors[1::2], strict=True)],
        }
    for name, values in expected.items():
        assert getattr(NoiseSource.seeded(9), name)(scale, count).tolist() == values, name


EXTREMES = [
    0,
    1,
    2,
    2**11,
    2**31,
    2**52,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**63 + 1,
    2**64 - 2**12,
    2**64 - 1,
]


@pytest.mark.parametrize("scale", [1e-9, 0.4, 1000.0, 2.0**40])
def test_extreme_words_are_rounded_exactly_too(monkeypatch, scale):
    words = np.array([w for a in EXTREMES for b in EXTREMES for w in (a, b)], np.uint64)
    keys = seeded_keys(1)
    monkeypatch.setattr(NoiseSource, "_words", lambda self, count: (words[:count].copy(), 0))
    drawn = NoiseSource.seeded(1).gaussian(scale, len(words))
    sided = NoiseSource.seeded(1).geometric(scale, len(words) // 2)
    with mpmath.workdps(75):
        u = list(uniform_oracle(words, 0, keys))
        for i in range(0, len(words), 2):
            radius = scale * mpmath.sqrt(-2 * mpmath.log(u[i]))
            turn = 2 * mpmath.pi * u[i + 1]
            assert drawn[i] == int(mpmath.floor(radius * mpmath.cos(turn) + 0.5))
            assert drawn[i + 1] == int(mpmath.floor(radius * mpmath.sin(turn) + 0.5))
            floors = [int(mpmath.floor(-scale * mpmath.log(v))) for v in u[i : i + 2]]
            assert sided[i // 2] == floors[0] - floors[1]


def test_undecided_draws_are_rare_at_working_scales():
    words = NoiseSource.seeded(3)._words(noise._CHUNK)[0]
    out = np.empty(noise._CHUNK, np.int64)
    assert len(noise._gaussian_block(words, 163840.0, out)) == 0
    assert 0 < len(noise._gaussian_block(words, 2.0**38, out)) < noise._CHUNK / 20


@pytest.mark.parametrize("name", SAMPLERS)
def test_two_fresh_sources_differ_and_a_seeded_one_repeats(name):
    def draw(source):
        return getattr(source, name)(1e6, 64)

    assert (draw(NoiseSource.fresh()) != draw(NoiseSource.fresh())).sum() > 60
    assert (draw(NoiseSource.seeded(1)) != draw(NoiseSource.seeded(2))).sum() > 60
    np.testing.assert_array_equal(draw(NoiseSource.seeded(1)), draw(NoiseSource.seeded(1)))
    source = NoiseSource.seeded(1)
    assert (draw(source) != draw(source)).sum() > 60


def test_only_a_fresh_source_is_private_and_says_what_it_is():
    assert NoiseSource.fresh().private is True
    assert NoiseSource.seeded(0).private is False
    with pytest.raises(AttributeError):
        NoiseSource.seeded(0).private = True
    assert "AES-256-CTR" in NoiseSource.fresh().implementation
    assert "not private" in repr(NoiseSource.seeded(0))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("shape", [0, 1, 7, (3,), (5, 3), (2, 0, 4), (), (1, 1, 1)])
def test_shapes_and_odd_counts(name, shape):
    drawn = getattr(NoiseSource.seeded(0), name)(100.0, shape)
    assert drawn.shape == (shape if isinstance(shape, tuple) else (shape,))
    assert drawn.dtype == np.int64


@pytest.mark.parametrize("name", ["gaussian", "geometric"])
def test_even_parts_join_up_to_the_whole(name):
    whole = getattr(NoiseSource.seeded(4), name)(50.0, 3 * noise._CHUNK)
    source = NoiseSource.seeded(4)
    sizes = (2, noise._CHUNK + 4, 2 * noise._CHUNK - 6)
    parts = [getattr(source, name)(50.0, size) for size in sizes]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, -np.inf, 2.0**40 + 1])
def test_bad_scales_are_refused(name, scale):
    with pytest.raises(NoiseError, match="scale"):
        getattr(NoiseSource.fresh(), name)(scale, 3)


def test_negative_shapes_are_refused():
    with pytest.raises(NoiseError, match="shape"):
        NoiseSource.fresh().gaussian(1.0, (2, -1))


@pytest.mark.parametrize("rate", [0.3, 1 / 78, 2.0**-12])
def test_bernoulli_accepts_its_rate_and_rejects_others(rate):
    count = 400_000
    shown = int(NoiseSource.fresh().bernoulli(rate, count).sum())
    assert stats.binomtest(shown, count, rate).pvalue > P
    if rate * count > 1000:
        assert stats.binomtest(shown, count, rate * 2 / 3).pvalue < P
        assert stats.binomtest(shown, count, rate * 3 / 2).pvalue < P


def test_bernoulli_is_a_comparison_with_the_exact_threshold(monkeypatch):
    words = np.array([0, 2**62 - 1, 2**62, 2**64 - 1], np.uint64)
    monkeypatch.setattr(NoiseSource, "_words", lambda self, count: (words[:count], 0))
    source = NoiseSource.seeded(0)
    assert source.bernoulli(0.25, 4).tolist() == [True, True, False, False]
    assert source.bernoulli(0.0, 4).tolist() == [False] * 4
    assert source.bernoulli(1.0, 4).tolist() == [True] * 4


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_bernoulli_refuses_what_is_no_probability(rate):
    with pytest.raises(NoiseError, match="probability"):
        NoiseSource.fresh().bernoulli(rate, 2)


def test_a_spent_stream_refuses():
    source = NoiseSource.seeded(0)
    source._drawn = 2 * noise.MAX_BLOCKS - 2
    source.gaussian(1.0, 2)
    with pytest.raises(NoiseError, match="spent"):
        source.gaussian(1.0, 2)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_source_cannot_be_cloned(clone):
    with pytest.raises(NoiseError, match="copied"):
        clone(NoiseSource.fresh())


def test_another_process_cannot_repeat_the_noise(monkeypatch):
    source = NoiseSource.fresh()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(NoiseError, match="process"):
        source.gaussian(1.0, 2)


def test_threads_share_one_stream_without_repeating_it():
    source = NoiseSource.seeded(8)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda _: source.gaussian(1e9, 500).tolist(), range(32)))
    whole = NoiseSource.seeded(8).gaussian(1e9, 500 * 32).reshape(32, 500).tolist()
    assert sorted(rows) == sorted(whole)
