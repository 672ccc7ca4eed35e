"""The ring: shares are uniform, sums are exact, the boundary is where it is said to be."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.aggregate import noisy_hops, sum_neighbours, to_grid, unit_rows
from tacit.errors import NoiseError
from tacit.graph import synthetic
from tacit.multiparty import ring as r
from tacit.privacy.noise import NoiseSource

BITS = 14
RINGS = [r.Ring(32), r.Ring(64)]
both = pytest.mark.parametrize("ring", RINGS, ids=["32", "64"])


class Given(NoiseSource):
    """Hands out integers that were drawn elsewhere."""

    def __init__(self, noise: np.ndarray) -> None:
        super().__init__()
        self.rest = noise.reshape(-1)

    def gaussian(self, scale, shape):
        size = math.prod(shape)
        found, self.rest = self.rest[:size], self.rest[size:]
        return found.reshape(shape)


def simulate(graph, rows, ring, *, parties, shares, std, seed):
    """Every slot split, sent to its parties, added up by key, noised and put together."""
    indptr, senders = graph.in_lists
    keys = np.repeat(np.arange(graph.nodes, dtype=np.int32), np.diff(indptr))
    stream, source = r.Stream.seeded(seed), NoiseSource.seeded(seed)
    chosen = r.choose_parties(len(keys), parties, shares, stream)
    words = r.split(ring.encode(to_grid(rows, BITS))[senders], shares, stream, ring)
    totals, noise = [], np.zeros(rows.shape, np.int64)
    own = r.party_std(std, parties, 1)
    for party in range(parties):
        total = np.zeros(rows.shape, ring.dtype)
        for role in range(shares):
            mine = chosen[:, role] == party
            r.add_by_key(total, keys[mine], words[role][mine])
        drawn = r.noise_words(source, own, rows.shape, ring, fraction_bits=BITS)
        noise += ring.decode(drawn)
        totals.append(total + drawn)
    return r.reconstruct(totals, ring), noise


@both
@pytest.mark.parametrize(("parties", "shares"), [(3, 2), (4, 3), (5, 3), (2, 2)])
def test_shares_noised_and_put_together_are_the_trusted_sum_bit_for_bit(ring, parties, shares):
    graph = synthetic.communities(90, mean_degree=9, features=11, classes=3, seed=4)
    rows = unit_rows(graph.features)
    sums, noise = simulate(graph, rows, ring, parties=parties, shares=shares, std=0.7, seed=parties)
    exact = sum_neighbours(*graph.in_lists, to_grid(rows, BITS))
    np.testing.assert_array_equal(sums, exact + noise)
    (trusted,) = noisy_hops(
        graph.in_lists, rows, stds=[0.7], source=Given(noise), bits=BITS, normalise=False
    )
    np.testing.assert_array_equal(r.to_real(sums, BITS), trusted)


@both
@pytest.mark.parametrize("value", [0, 1, -1, 2**14, -(2**14), 12345])
def test_every_share_of_any_value_is_uniform(ring, value):
    stream = r.Stream.seeded(value & 0xFF)
    values = ring.encode(np.full(60_000, value, np.int64))
    shares = r.split(values, 3, stream, ring)
    np.testing.assert_array_equal(r.reconstruct(shares, ring), value)
    for words in shares:
        # High and low bytes: carries would show in the low, a narrow range in the high ones.
        for shift in (0, ring.bits - 8):
            counts = np.bincount((words >> shift).astype(np.uint8), minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-6
    first, second = (words >> (ring.bits - 4) for words in shares[1:])
    table = np.histogram2d(first, second, bins=16)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-6


def test_the_uniformity_test_sees_shares_over_a_bounded_range():
    # Shares over the reals, or the integers, hide nothing: the last one still shows the value.
    rng = np.random.default_rng(1)
    words = (2**31 - rng.integers(0, 2**31, 60_000)).astype(np.uint32)
    counts = np.bincount((words >> 24).astype(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue < 1e-6


@both
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_encode_and_decode_undo_each_other(ring, data):
    end = 2 ** (ring.bits - 1)
    values = np.array(
        data.draw(st.lists(st.integers(-end, end - 1), min_size=1, max_size=9)), np.int64
    )
    words = ring.encode(values)
    np.testing.assert_array_equal(ring.decode(words), values)
    np.testing.assert_array_equal(ring.from_bytes(ring.to_bytes(words), len(values)), words)


def test_the_boundary_of_the_small_ring_is_exact():
    # (terms + 10 σ) 2^f < 2^31, at f = 14: 131072 = 2^17 terms without noise are one too many.
    small = r.Ring(32)
    assert small.holds(2**17 - 1, 14, 0.0)
    assert not small.holds(2**17, 14, 0.0)
    assert small.holds(2**17 - 11, 14, 1.0)
    assert not small.holds(2**17 - 10, 14, 1.0)
    assert r.smallest_ring(2**17 - 1, 14, 0.0).bits == 32
    assert r.smallest_ring(2**17, 14, 0.0).bits == 64
    with pytest.raises(NoiseError, match="overflow"):
        r.smallest_ring(2**50, 24, 1.0)
    # One step past the end wraps to the other sign, and the larger ring does not.
    top = np.array([2**31 - 1], np.int64)
    assert small.decode(small.encode(top) + np.uint32(1)) == -(2**31)
    assert r.Ring(64).decode(r.Ring(64).encode(top) + np.uint64(1)) == 2**31
    with pytest.raises(NoiseError, match="does not fit"):
        small.encode(top + 1)


@both
def test_sums_that_pass_the_end_on_the_way_come_back(ring):
    end = 2 ** (ring.bits - 1) - 1
    values = np.array([[end], [end], [-end], [-end], [5]], np.int64)
    total = np.zeros((1, 1), ring.dtype)
    r.add_by_key(total, np.zeros(5, np.int32), ring.encode(values))
    assert ring.decode(total)[0, 0] == 5


@both
def test_seeds_expand_to_the_known_stream_and_the_last_share_completes(ring):
    # RFC 8439, Appendix A.1, test vector 1: key, counter and nonce zero.
    known = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    width = 64 // ring.word_bytes
    assert ring.to_bytes(r.expand(bytes(32), width, ring, nonce=0)) == known
    seeds = [bytes([7]) * 32, bytes([9]) * 32]
    value = ring.encode(np.arange(-3, 4))
    parts = [r.expand(seed, 7, ring, nonce=5) for seed in seeds]
    parts.append(r.last_share(value, seeds, ring, nonce=5))
    np.testing.assert_array_equal(r.reconstruct(parts, ring), np.arange(-3, 4))
    assert (parts[0] != r.expand(seeds[0], 7, ring, nonce=6)).any()


@both
def test_masks_cancel_and_hide_a_total(ring):
    seeds = {(p, q): bytes([16 * p + q]) * 32 for p in range(4) for q in range(p + 1, 4)}
    masks = []
    for me in range(4):
        mine = {q if p == me else p: seed for (p, q), seed in seeds.items() if me in (p, q)}
        masks.append(r.mask_words(mine, me, (5000, 4), ring, nonce=3))
    assert not r.reconstruct(masks, ring).any()
    # Knowing party 0's seeds leaves the others' masks uniform.
    known = ring.encode(np.zeros((5000, 4), np.int64))
    known -= r.expand(seeds[0, 2], known.size, ring, nonce=3).reshape(known.shape)
    counts = np.bincount(((masks[2] - known) >> (ring.bits - 8)).ravel().astype(np.uint8))
    assert stats.chisquare(counts).pvalue > 1e-6
    with pytest.raises(NoiseError, match="itself"):
        r.mask_words({1: bytes(32)}, 1, 3, ring, nonce=0)


def test_parties_are_chosen_evenly_and_never_twice():
    chosen = r.choose_parties(60_000, 4, 3, r.Stream.seeded(2))
    assert (np.sort(chosen, axis=1)[:, 1:] != np.sort(chosen, axis=1)[:, :-1]).all()
    codes = chosen.astype(int) @ [16, 4, 1]
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-6


@both
def test_the_honest_parties_noise_alone_has_the_planned_variance(ring):
    source, std, parties, colluding = NoiseSource.seeded(8), 0.02, 5, 2
    own = r.party_std(std, parties, colluding)
    honest = [
        r.noise_words(source, own, 40_000, ring, fraction_bits=BITS)
        for _ in range(parties - colluding)
    ]
    noise = r.reconstruct(honest, ring) / (std * 2**BITS)

    def fits(scale):
        return stats.kstest(noise / scale, "norm").pvalue > 1e-6

    assert fits(1.0)
    assert not fits(2 / 3)
    assert not fits(3 / 2)
    # The paper divides by m: without two colluders 3/5 of the variance is left.
    assert not fits(math.sqrt(parties / (parties - colluding)))


def test_what_protects_nothing_is_refused():
    with pytest.raises(NoiseError, match="not a sharing"):
        r.check_sharing(3, 1)
    with pytest.raises(NoiseError, match="put 2 shares together"):
        r.check_sharing(3, 2, 2)
    with pytest.raises(NoiseError, match="see every slot"):
        r.check_sharing(3, 3, 1)
    r.check_sharing(3, 2, 1)
    with pytest.raises(NoiseError, match="too fine"):
        r.noise_words(NoiseSource.seeded(0), 1e-4, 3, r.Ring(64), fraction_bits=14)
    with pytest.raises(NoiseError, match="value itself"):
        r.split(np.zeros(3, np.uint32), 1, r.Stream.seeded(0), r.Ring(32))
    with pytest.raises(NoiseError, match="signed integers"):
        r.Ring(32).encode(np.zeros(3))
    with pytest.raises(NoiseError, match="32 or 64"):
        r.Ring(16)


def test_damaged_input_is_refused_before_anything_is_added():
    ring, total = r.Ring(32), np.zeros((4, 2), np.uint32)
    rows = np.ones((2, 2), np.uint32)
    for keys in ([0, 4], [-1, 0]):
        with pytest.raises(NoiseError, match="names no row"):
            r.add_by_key(total, np.array(keys), rows)
    with pytest.raises(NoiseError, match="do not fit"):
        r.add_by_key(total, np.array([0]), rows)
    with pytest.raises(NoiseError, match="cannot add"):
        r.add_by_key(total, np.array([0, 1]), rows.astype(np.uint64))
    assert not total.any()
    with pytest.raises(NoiseError, match="payload"):
        ring.from_bytes(b"abc", 1)
    with pytest.raises(NoiseError, match="32 bytes"):
        r.expand(b"short", 4, ring, nonce=0)
    with pytest.raises(NoiseError, match="not of the ring"):
        ring.decode(np.zeros(3, np.uint64))
    with pytest.raises(NoiseError, match="copied"):
        pickle.dumps(r.Stream.fresh())
