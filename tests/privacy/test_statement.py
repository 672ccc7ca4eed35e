import dataclasses
import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tacit.errors import ReleaseError
from tacit.privacy.statement import Statement

STATEMENT = Statement(
    method="gap",
    unit="node",
    relation="add-remove",
    unit_words="One person's own record: features, label and at most 100 reported links.",
    epsilon=7.99937,
    delta=1e-5,
    epsilon_rdp=8.43129,
    accountant="privacy loss distributions (decides), Renyi (cross-check)",
    events=("781 x Poisson-sampled Gaussian noise", "2 x Gaussian noise"),
    accounting="sound",
    private_noise=True,
    noise="rounded Gaussian integers from an AES-CTR stream",
    trust_model="Central: one curator holds the raw graph.",
    assumptions=("Out-lists were truncated by reading each alone.",),
    not_covered=("Other runs on the same data: see the ledger.",),
    theorems=("proofs/gap.md",),
)
NO_NOISE = dataclasses.replace(STATEMENT, epsilon=math.inf, epsilon_rdp=math.inf)
SEEDED = dataclasses.replace(STATEMENT, private_noise=False)
PAPER = dataclasses.replace(STATEMENT, accounting="paper")
HEADINGS = (
    "Privacy unit",
    "Privacy parameters",
    "Mechanism and events",
    "Accounting",
    "Trust model",
    "Assumptions",
    "Implementation of noise",
    "Not covered",
)


def shown(statement, width):
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(statement.panel())
    return out.getvalue()


@pytest.mark.parametrize(
    ("statement", "stamp"),
    [
        (STATEMENT, ""),
        (SEEDED, "not private"),
        (PAPER, "paper accounting"),
        (NO_NOISE, "no privacy (epsilon is infinite)"),
        (dataclasses.replace(SEEDED, accounting="paper"), "not private"),
        (dataclasses.replace(NO_NOISE, private_noise=False), "no privacy (epsilon is infinite)"),
    ],
    ids=["sound", "seeded", "paper", "no noise", "seeded and paper", "no noise and seeded"],
)
def test_only_an_unstamped_statement_is_releasable(statement, stamp):
    assert statement.stamp == stamp
    assert statement.releasable == (stamp == "")
    for text in (str(statement), statement.to_markdown(), shown(statement, 120)):
        assert stamp in text


@pytest.mark.parametrize("statement", [STATEMENT, NO_NOISE, SEEDED, PAPER])
def test_round_trip(statement):
    assert Statement.from_json(statement.to_json()) == statement
    assert Statement.from_dict(json.loads(json.dumps(statement.to_dict()))) == statement


@settings(max_examples=30, deadline=None)
@given(
    st.text(max_size=20),
    st.lists(st.text(max_size=20), max_size=3).map(tuple),
    st.floats(0, 1e5),
    st.floats(0, 0.5),
)
def test_any_words_round_trip_and_can_be_shown(words, events, epsilon, delta):
    statement = dataclasses.replace(
        STATEMENT, unit_words=words, events=events, epsilon=epsilon, delta=delta
    )
    assert Statement.from_json(statement.to_json()) == statement
    assert shown(statement, 80)
    assert statement.to_markdown()


@pytest.mark.parametrize("width", [80, 120])
def test_the_panel_fits_and_says_everything(width):
    lines = shown(STATEMENT, width).splitlines()
    assert max(map(len, lines)) == width
    text = " ".join(" ".join(line.strip("│ ").split()) for line in lines)
    for word in ("epsilon 8", "delta 1e-05", "per unit: node", "add-remove", "8.432", "proofs/"):
        assert word in text
    for line in (*STATEMENT.assumptions, *STATEMENT.not_covered, STATEMENT.noise):
        assert line.split()[0] in text
    assert "[" not in text  # No markup shown raw.


def test_markdown_has_the_headings_in_order_and_keeps_hostile_text_harmless():
    text = STATEMENT.to_markdown()
    assert tuple(x[3:] for x in text.splitlines() if x.startswith("## ")) == HEADINGS
    hostile = dataclasses.replace(
        STATEMENT, unit_words="x\n# Anything\n<script>", method="[red]a[/red]"
    )
    assert "\n# Anything" not in hostile.to_markdown()
    assert "<script>" not in hostile.to_markdown().replace("\\<", "")
    assert "[red]a[/red]" in shown(hostile, 120)


@pytest.mark.parametrize("statement", [STATEMENT, NO_NOISE, SEEDED, PAPER])
def test_it_claims_no_legal_status(statement):
    replaced = dataclasses.replace(statement, relation="replace")
    for each in (statement, replaced):
        texts = (str(each), each.to_markdown(), each.to_json(), shown(each, 100))
        for word in ("anonym", "compliant", "complies", "gdpr"):
            assert all(word not in text.lower() for text in texts)


def test_an_epsilon_is_never_shown_without_its_unit():
    for text in (str(STATEMENT), str(NO_NOISE)):
        assert "per unit node (add-remove)" in text
    assert "epsilon none (no noise)" in str(NO_NOISE)
    assert "none (no noise)" in NO_NOISE.to_markdown()


def test_epsilon_is_shown_rounded_up():
    for epsilon, words in ((7.99937, "8"), (1.00001, "1.001"), (4.0, "4"), (0.12341, "0.1235")):
        assert f"epsilon {words}," in str(dataclasses.replace(STATEMENT, epsilon=epsilon))
    assert "epsilon 0," in str(dataclasses.replace(STATEMENT, epsilon=0.0))


def best_guess(epsilon, delta):
    """Success of the best test against the worst (epsilon, delta) mechanism, by its four outcomes.

    Kairouz, Oh, Viswanath 2015: P = (delta, (1-delta) e^eps/(1+e^eps), (1-delta)/(1+e^eps), 0) and
    Q is its mirror; the best guess names the likelier of the two.
    """
    low = (1 - delta) / (1 + math.exp(epsilon))
    p = (delta, 1 - delta - low, low, 0.0)
    return sum(max(a, b) for a, b in zip(p, p[::-1], strict=True)) / 2


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, math.log(3), 8.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.3])
def test_membership_success_is_that_of_the_worst_mechanism(epsilon, delta):
    statement = dataclasses.replace(STATEMENT, epsilon=epsilon, delta=delta)
    assert statement.membership_success == pytest.approx(best_guess(epsilon, delta), rel=1e-12)


def test_membership_in_words():
    def words(epsilon, relation="add-remove"):
        return dataclasses.replace(
            STATEMENT, epsilon=epsilon, delta=0.0, relation=relation
        ).membership_words

    assert "at most 75 % of the time" in words(math.log(3))
    assert "at most 50 % of the time" in words(0.0)
    assert "at most 99.97 % of the time" in words(8.0)
    assert "practically always" in words(30.0)
    assert "which of two versions" in words(1.0, "replace")
    assert "with certainty" in NO_NOISE.membership_words
    assert NO_NOISE.membership_success == 1.0
    assert SEEDED.membership_words.startswith("If the noise were fresh and secret, which it is not")
    assert PAPER.membership_words.startswith("By the paper's accounting, which is not proved")


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": "8"},
        {"epsilon": True},
        {"epsilon": -1.0},
        {"delta": 1.5},
        {"events": "one"},
        {"events": [1]},
        {"private_noise": 1},
        {"relation": "swap"},
        {"accounting": "generous"},
        {"unit": None},
        {"surprise": 1},
    ],
    ids=str,
)
def test_what_is_no_statement_is_refused(change):
    with pytest.raises(ReleaseError):
        Statement.from_dict(STATEMENT.to_dict() | change)


def test_a_forged_stamp_is_computed_anew():
    forged = SEEDED.to_dict() | {"releasable": True, "stamp": ""}
    assert not Statement.from_dict(forged).releasable


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"epsilon": NaN}', "[" * 10_000])
def test_text_that_is_no_statement_is_refused(text):
    with pytest.raises(ReleaseError):
        Statement.from_json(text)
