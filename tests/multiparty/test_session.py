"""Whole sessions in one process: exact sums, shares that show nothing, constant uploads."""

from __future__ import annotations

import numpy as np
import pytest
from local_session import BITS, Local, agreement, expected, lists, one_hot
from scipy import stats

from tacit.multiparty.ring import reconstruct
from tacit.privacy.noise import NoiseSource


@pytest.fixture
def local(tmp_path):
    made = []

    def build(facts, held, **options):
        made.append(Local(facts, tmp_path / f"s{len(made)}", held, **options))
        return made[-1]

    yield build
    for session in made:
        session.close()


def test_every_cell_of_one_hot_values_is_counted_exactly_once(local):
    facts, held = agreement(users=8, widths=(8, 3)), lists(8, 3)
    rows = [one_hot(8, 8), one_hot(8, 3) * 5]
    session = local(facts, held)
    assert session.run(rows)["done"]
    exact = session.exact(1)
    assert set(np.unique(exact)) <= {0, 1}
    np.testing.assert_array_equal(exact, expected(held, rows[0]))
    np.testing.assert_array_equal(session.exact(2), expected(held, rows[1]))


def test_the_released_sums_are_those_of_the_simulation_with_the_same_noise(local):
    from tacit.aggregate import sum_neighbours

    facts, held = agreement(users=8, widths=(4,), std=2.0), lists(8, 3)
    rng = np.random.default_rng(1)
    rows = [rng.integers(-(2**BITS), 2**BITS, (8, 4)).astype(np.int32)]
    session = local(facts, held)
    assert session.run(rows)["done"]
    from scipy.sparse import csr_array

    listed = csr_array((np.ones(len(held.indices)), held.indices, held.indptr), shape=(8, 8))
    inward = csr_array(listed.T)
    exact = sum_neighbours(
        inward.indptr.astype(np.int64), inward.indices.astype(np.int32), rows[0].astype(np.int32)
    )
    noise = sum(NoiseSource.seeded(100 + p).gaussian(2.0 * 2**BITS, (8, 4)) for p in range(3))
    np.testing.assert_array_equal(session.get("server").sums(1), exact + noise)


def test_what_a_party_publishes_is_uniform_and_differs_from_its_total(local):
    facts, held = agreement(users=64, widths=(16,), bits=64), lists(64, 3)
    session = local(facts, held)
    assert session.run([one_hot(64, 16)])["done"]
    shares = [session.get(f"party-{p}").share(1) for p in range(3)]
    for share in shares:
        seen = np.bincount(np.frombuffer(share, np.uint8), minlength=256)
        assert stats.chisquare(seen).pvalue > 1e-6
    words = [facts.ring.from_bytes(share, 64 * 16) for share in shares]
    assert np.abs(reconstruct(words, facts.ring)).max() < 20 * 2**BITS


def test_every_upload_of_a_round_has_the_same_length_whatever_the_list(local):
    held = lists(6, 3)
    held.indptr[1:] += 0
    session = local(agreement(), held)
    session.step("shuffler", [])
    agent = session.get("user")
    assert len({len(message) for _, message in agent.registrations()}) == 1
    assert len({len(message) for _, message in agent.values(1, one_hot(6, 2))}) == 1


def test_the_ledger_is_charged_for_counts_and_for_each_round_before_it_is_seen(local):
    session = local(agreement(widths=(2, 2)), lists(6, 3))
    assert session.run([one_hot(6, 2)] * 2)["done"]
    assert session.charged == [0, 1, 2]


def test_a_user_gets_its_own_row_and_no_other(local):
    from tacit.multiparty.certificates import Identity
    from tacit.multiparty.refusals import RefusedError

    session = local(agreement(), lists(6, 3))
    assert session.run([one_hot(6, 2)])["done"]
    server, me = session.get("server"), Identity(session.agreement.session, "user", 2, 2)
    own = np.frombuffer(server.rows(me, 1, 2, 2), "<i8")
    np.testing.assert_array_equal(own, server.sums(1)[2])
    for first, last in ((1, 1), (2, 3), (0, 5), (3, 2)):
        with pytest.raises(RefusedError, match="act for"):
            server.rows(me, 1, first, last)
    with pytest.raises(RefusedError, match="another session"):
        server.rows(Identity("00" * 16, "user", 2, 2), 1, 2, 2)
