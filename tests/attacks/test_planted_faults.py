"""An audit catches every published fault, and lets the same mechanism without it pass."""

from dataclasses import replace

import numpy as np
import pytest
from planted import (
    DELTA,
    FAULTS,
    Maker,
    batches,
    edge_rand,
    one_arc,
    rows,
    scaled_noise,
    sketch,
    truncated,
    two_layers,
)

import tacit
from tacit.attacks.audit import Finding, Game, Target, audit_method, audit_targets, group
from tacit.attacks.bounds import Claim
from tacit.errors import PlanError


def found(maker: Maker, faulty: bool) -> Finding:
    (finding,) = audit_targets([maker(faulty)])
    return finding


def caught(maker: Maker) -> None:
    finding = found(maker, faulty=True)
    # The bound at the very delta that was told, not only somewhere on the curve.
    assert finding.epsilon_lower > finding.claim.epsilon
    assert finding.claim.delta <= DELTA
    assert finding.broken


def test_noise_scaled_by_two_thirds_is_caught() -> None:
    caught(scaled_noise)


def test_symmetric_links_charged_as_one_arc_are_caught() -> None:
    caught(one_arc)


def test_truncation_claimed_for_all_links_is_caught() -> None:
    caught(truncated)


def test_dpa_with_noise_only_in_its_first_layer_is_caught() -> None:
    caught(two_layers)
    # No finite epsilon would do: the bound is what so many runs can show at most.
    assert found(two_layers, faulty=True).epsilon_lower > 6


def test_w_left_unnormalised_is_caught() -> None:
    caught(sketch)


def test_a_group_charged_by_its_square_root_is_caught() -> None:
    caught(rows)


def test_fixed_size_batches_charged_as_poisson_are_caught() -> None:
    caught(batches)


def test_randomised_response_with_another_exponent_is_caught() -> None:
    caught(edge_rand)


@pytest.mark.parametrize("name", FAULTS)
def test_the_twin_without_the_fault_passes(name: str) -> None:
    finding = found(FAULTS[name], faulty=False)
    assert not finding.broken
    assert finding.epsilon_lower <= finding.claim.epsilon


@pytest.mark.parametrize(
    ("maker", "share"), [(scaled_noise, 0.6), (one_arc, 0.6), (edge_rand, 0.9), (batches, 0.4)]
)
def test_the_bound_for_a_tight_twin_comes_near_its_claim(maker: Maker, share: float) -> None:
    finding = found(maker, faulty=False)
    assert finding.epsilon_lower >= share * finding.claim.epsilon


def flipped(epsilon: float, claim: Claim, seed: int) -> Target:
    """One bit of randomised response: the tightest mechanism there is."""
    rng = np.random.default_rng(seed)
    stay = 1 / (1 + np.exp(-epsilon))

    def release(sides: np.ndarray) -> np.ndarray:
        return (sides ^ (rng.random(len(sides)) >= stay))[:, None].astype(float)

    return Target("bit", claim, (Game("bit", release, chunk=10_000),), 1_000)


def test_true_claims_are_called_broken_no_more_often_than_stated() -> None:
    alarms = sum(
        audit_targets([flipped(1.0, Claim.of(1.0, 0.0), seed)])[0].broken for seed in range(400)
    )
    assert alarms <= 0.05 * 400


def test_a_claim_a_third_too_small_is_called_broken_nearly_always() -> None:
    seen = sum(
        audit_targets([flipped(1.5, Claim.of(1.0, 0.0), seed)])[0].broken for seed in range(50)
    )
    assert seen >= 45


def test_several_targets_share_the_error() -> None:
    one, two = (
        audit_targets([flipped(1.0, Claim.of(1.0, 0.0), s) for s in range(n)])[0].tests[0]
        for n in (1, 2)
    )
    assert one.alpha == pytest.approx(0.05)
    assert two.alpha == pytest.approx(0.025)


def test_a_witness_two_units_apart_is_held_against_twice_the_claim() -> None:
    claim = Claim.of(1.0, 1e-5)
    assert group(claim, 1) is claim
    two = group(claim, 2)
    assert two.epsilon == 2.0
    assert two.delta == pytest.approx(1e-5 * (1 + np.e))
    # Two bits that both flip with the record: 2 epsilon, allowed for two units and not for one.
    for steps, broken in ((2, False), (1, True)):
        target = flipped(2.0, Claim.of(1.0, 0.0), 3)
        game = replace(target.games[0], steps=steps)
        (finding,) = audit_targets([replace(target, games=(game,))])
        assert finding.broken is broken
    # What it shows for one unit is half of it.
    target = flipped(2.0, Claim.of(1.0, 0.0), 3)
    (finding,) = audit_targets([replace(target, games=(replace(target.games[0], steps=2),))])
    assert finding.epsilon_lower == pytest.approx(finding.lower(0.0) / 2)
    assert 0.8 < finding.epsilon_lower < 1.0


def test_the_pilot_chooses_the_witness_that_shows_most() -> None:
    weak, strong = flipped(0.1, Claim.of(1.0, 0.0), 3), flipped(1.5, Claim.of(1.0, 0.0), 3)
    games = (*weak.games, replace(strong.games[0], name="strong"))
    (finding,) = audit_targets([replace(weak, games=games)])
    assert finding.witness == "strong"
    assert finding.broken


def test_figures_that_mean_nothing_are_refused() -> None:
    target = flipped(1.0, Claim.of(1.0, 0.0), 0)
    with pytest.raises(PlanError, match="confidence"):
        audit_targets([target], confidence=1.0)
    with pytest.raises(PlanError, match="nothing to audit"):
        audit_targets([])
    with pytest.raises(PlanError, match="cannot be audited"):
        audit_targets([replace(target, games=())])
    with pytest.raises(PlanError, match="infinite"):
        audit_method(tacit.GAP(tacit.Edge(), float("inf")))
    with pytest.raises(PlanError, match="show nothing"):
        audit_method(tacit.GAP(tacit.Edge(), 1.0), runs=3)


def test_progress_ends_at_its_total() -> None:
    told: list[tuple[str, int, int]] = []
    audit_targets([flipped(1.0, Claim.of(1.0, 0.0), 0)], progress=lambda *x: told.append(x))
    assert told[-1][0] == "bit"
    assert told[-1][1] == told[-1][2]
