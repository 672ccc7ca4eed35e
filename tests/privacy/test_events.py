import json
import math

import attr
import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import PlanError
from tacit.privacy.events import describe, event_from_json, event_to_json, simplify
from tacit.privacy.losses import Loss

noises = st.floats(0, 1e6, allow_nan=False)
leaves = st.one_of(
    st.builds(dp.NoOpDpEvent),
    st.builds(dp.NonPrivateDpEvent),
    st.builds(dp.GaussianDpEvent, noises),
    st.builds(dp.LaplaceDpEvent, noises),
    st.builds(DiscreteLaplaceDpEvent, noises, st.integers(0, 1000)),
    st.builds(dp.RandomizedResponseDpEvent, st.floats(0, 1), st.integers(1, 100)),
)
events = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(dp.PoissonSampledDpEvent, st.floats(0, 1), inner),
        st.builds(dp.SelfComposedDpEvent, inner, st.integers(0, 10**6)),
        st.builds(dp.ComposedDpEvent, st.lists(inner, max_size=4)),
    ),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(events)
def test_round_trip_through_json_text_is_exact(event):
    text = json.dumps(event_to_json(event), allow_nan=False)
    assert event_from_json(json.loads(text)) == event
    assert json.dumps(event_to_json(event_from_json(json.loads(text)))) == text
    line = describe(event)
    assert line
    assert "\n" not in line


def test_numpy_numbers_become_plain_ones():
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(np.float32(1.5)), np.int64(3))
    assert event_to_json(event) == {
        "event": "repeated",
        "count": 3,
        "of": {"event": "gaussian", "noise_multiplier": 1.5},
    }


UNKNOWN = [
    dp_event.UnsupportedDpEvent(),
    dp_event.ZCDpEvent(1.0),
    dp_event.SingleEpochTreeAggregationDpEvent(1.0, 3),
    dp_event.RepeatAndSelectDpEvent(dp.GaussianDpEvent(1.0), 2.0, 1.0),
    dp_event.MixtureOfGaussiansDpEvent(1.0, [1.0], [1.0]),
    dp_event.SampledWithoutReplacementDpEvent(10, 2, dp.GaussianDpEvent(1.0)),
    dp_event.SampledWithReplacementDpEvent(10, 2, dp.GaussianDpEvent(1.0)),
    dp_event.TruncatedSubsampledGaussianDpEvent(10, 0.1, 5, 1.0),
]


@attr.s(frozen=True, auto_attribs=True)
class ExponentialMechanismDpEvent(dp.DpEvent):
    """By name the event whose count dp-accounting's Renyi accountant forgets."""

    epsilon: float


@pytest.mark.parametrize(
    "event", [*UNKNOWN, ExponentialMechanismDpEvent(0.1)], ids=lambda e: type(e).__name__
)
def test_unknown_events_are_refused_wherever_they_hide(event):
    for hidden in (
        event,
        dp.SelfComposedDpEvent(event, 3),
        dp.ComposedDpEvent([dp.NonPrivateDpEvent(), event]),
        dp.PoissonSampledDpEvent(0.1, event),
        dp.SelfComposedDpEvent(event, 0),
    ):
        with pytest.raises(PlanError):
            simplify(hidden)
        with pytest.raises(PlanError):
            event_to_json(hidden)


def test_a_subclass_of_a_known_event_is_unknown():
    class Milder(dp.GaussianDpEvent):
        pass

    with pytest.raises(PlanError):
        simplify(Milder(1.0))


@pytest.mark.parametrize(
    "event",
    [
        dp.GaussianDpEvent(-1.0),
        dp.GaussianDpEvent(math.nan),
        dp.GaussianDpEvent(math.inf),
        dp.GaussianDpEvent("1"),
        dp.GaussianDpEvent(True),
        dp.PoissonSampledDpEvent(1.1, dp.GaussianDpEvent(1.0)),
        dp.PoissonSampledDpEvent(-0.1, dp.GaussianDpEvent(1.0)),
        dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), -1),
        dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 2.5),
        dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), True),
        dp.RandomizedResponseDpEvent(1.5, 2),
        dp.RandomizedResponseDpEvent(0.5, 0),
        DiscreteLaplaceDpEvent(1.0, 1.5),
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused(event):
    with pytest.raises(PlanError):
        simplify(event)
    with pytest.raises(PlanError):
        event_to_json(event)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"event": "exponential", "epsilon": 1.0},
        {"event": ["gaussian"]},
        {"event": "gaussian"},
        {"event": "gaussian", "noise_multiplier": 1.0, "extra": 1},
        {"event": "gaussian", "noise_multiplier": "1.0"},
        {"event": "composed", "of": {"event": "none"}},
        {"event": "repeated", "count": 1.0, "of": {"event": "none"}},
        {"event": "poisson-sampled", "sampling_probability": 2.0, "of": {"event": "none"}},
    ],
    ids=str,
)
def test_json_that_is_no_event_is_refused(data):
    with pytest.raises(PlanError):
        event_from_json(data)


def test_deep_nesting_is_refused_rather_than_followed():
    data, event = {"event": "none"}, dp.NoOpDpEvent()
    for _ in range(200):
        data, event = {"event": "composed", "of": [data]}, dp.ComposedDpEvent([event])
    with pytest.raises(PlanError):
        event_from_json(data)
    with pytest.raises(PlanError):
        event_to_json(event)
    with pytest.raises(PlanError):
        simplify(event)


def test_gaussians_merge_and_equal_steps_are_counted():
    step = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(2.0))
    event = dp.ComposedDpEvent(
        [
            dp.SelfComposedDpEvent(step, 5),
            dp.GaussianDpEvent(3.0),
            dp.SelfComposedDpEvent(dp.ComposedDpEvent([step, dp.GaussianDpEvent(4.0)]), 2),
            dp.PoissonSampledDpEvent(1.0, dp.GaussianDpEvent(6.0)),
        ]
    )
    merged, counted = simplify(event)
    assert merged[0].kind == "gaussian"
    assert merged[1] == 1
    assert merged[0].noise == pytest.approx((1 / 9 + 2 / 16 + 1 / 36) ** -0.5)
    assert counted == (Loss("gaussian", 2.0, rate=0.01), 7)


def test_one_sample_used_by_several_gaussians_is_one_sampled_gaussian():
    inner = dp.ComposedDpEvent([dp.GaussianDpEvent(2.0), dp.GaussianDpEvent(2.0)])
    ((loss, count),) = simplify(dp.PoissonSampledDpEvent(0.1, inner))
    assert count == 1
    assert (loss.rate, loss.noise) == (0.1, pytest.approx(math.sqrt(2)))


@pytest.mark.parametrize(
    "inner",
    [
        dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1.0), 2),
        dp.ComposedDpEvent([dp.LaplaceDpEvent(1.0), dp.GaussianDpEvent(1.0)]),
        dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(1.0)),
        dp.SelfComposedDpEvent(dp.RandomizedResponseDpEvent(0.5, 2), 3),
        dp.ComposedDpEvent([DiscreteLaplaceDpEvent(1.0, 1), dp.RandomizedResponseDpEvent(0.5, 2)]),
    ],
    ids=str,
)
def test_sampling_of_what_is_not_proved_is_refused(inner):
    with pytest.raises(PlanError, match="Poisson sampling"):
        simplify(dp.PoissonSampledDpEvent(0.1, inner))


def test_descriptions_read_well():
    step = dp.PoissonSampledDpEvent(0.0128, dp.GaussianDpEvent(0.94859))
    event = dp.ComposedDpEvent([dp.SelfComposedDpEvent(step, 781), dp.LaplaceDpEvent(2.0)])
    assert describe(event) == (
        "781 x Poisson-sampled Gaussian noise (rate 0.0128, noise multiplier 0.9486)"
        " + Laplace noise (noise multiplier 2)"
    )
    assert describe(dp.ComposedDpEvent([])) == "nothing released"
