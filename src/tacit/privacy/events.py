"""Events: what a run did to the data, as Google's dp-accounting names it, read and written exactly.

An event is the whole input of accounting. Only the kinds listed in :func:`event_to_json` are
known; anything else is refused, because a cost that cannot be computed must not be guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tacit.errors import PlanError
from tacit.privacy.losses import Loss

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_DEEPEST = 32
_GROUP_FIELDS = ("noise_multiplier", "group", "sampling_probability")
_WIDEST = 1_000_000


@lru_cache(maxsize=1)
def group_event() -> Any:
    """The class of the one event that dp-accounting lacks, ``SampledGroupDpEvent``.

    One step of DP-SGD in which ``group`` records change their contribution, each by at most one
    unit of the noise multiplier, and each is Poisson sampled with ``sampling_probability``. What
    it costs is Theorem 3 of proofs/dpdgc.md. Made on first use: dp-accounting is slow to import.
    """
    from dp_accounting import DpEvent

    @dataclass(frozen=True)
    class SampledGroupDpEvent(DpEvent):
        noise_multiplier: float
        group: int
        sampling_probability: float

    return SampledGroupDpEvent


def event_to_json(event: DpEvent) -> dict[str, Any]:
    """Writes an event as plain JSON values.

    Known kinds: ``none``, ``non-private``, ``gaussian``, ``laplace``, ``discrete-laplace``,
    ``randomized-response``, ``poisson-sampled``, ``sampled-group``, ``repeated``, ``composed``.

    Args:
        event: The event.

    Returns:
        A dictionary that :func:`event_from_json` turns into an equal event.

    Raises:
        PlanError: The kind is unknown or a parameter is out of range.
    """
    return _to_json(event, 0)


def event_from_json(data: Mapping[str, Any]) -> DpEvent:
    """Reads what :func:`event_to_json` wrote.

    Args:
        data: The dictionary; every key must be known, none may be missing.

    Returns:
        The event.

    Raises:
        PlanError: The data does not describe a known event.
    """
    return _from_json(data, 0)


def simplify(event: DpEvent) -> tuple[tuple[Loss, int], ...] | None:
    """Rewrites an event as the shortest list of mechanisms with the same privacy loss.

    Three exact rules: Gaussians compose to one Gaussian with ``1/s^2 = sum 1/s_i^2``, sampled as
    a group or not at all; equal mechanisms are counted; sampling at rate 1 is no sampling.

    Args:
        event: The event.

    Returns:
        Mechanisms and their counts, sorted; ``None`` for an event without any privacy.

    Raises:
        PlanError: The event is of an unknown kind, or samples something for which no bound is
            proved.

    Formal guarantees:
        The worst pair of adaptively composed Gaussian mechanisms is the pair of the one Gaussian
        mechanism given here (Dong, Roth, Su 2022, Corollary 3.3, https://arxiv.org/abs/1905.02383).
    """
    counts: dict[Loss, int] = {}
    if not _collect(event, 1, counts, 0):
        return None
    return _merged(counts)


def describe(event: DpEvent) -> str:
    """One line that a person can read.

    Args:
        event: The event.

    Returns:
        Such as ``781 x Poisson-sampled Gaussian noise (rate 0.0128, noise multiplier 0.9486)``.
    """
    from dp_accounting import dp_event as dp

    if type(event) is dp.ComposedDpEvent:
        return " + ".join(describe(part) for part in event.events) or "nothing released"
    if type(event) is dp.SelfComposedDpEvent:
        inner = describe(event.event)
        return f"{event.count} x {f'({inner})' if ' + ' in inner else inner}"
    if type(event) is dp.PoissonSampledDpEvent:
        rate = f"rate {event.sampling_probability:.4g}"
        inner = describe(event.event)
        if " + " in inner or " x " in inner:
            return f"Poisson-sampled ({inner}) ({rate})"
        name, _, rest = inner.partition(" (")
        return f"Poisson-sampled {name} ({rate}, {rest}"
    data = event_to_json(event)
    match data["event"]:
        case "none":
            return "nothing released"
        case "non-private":
            return "a release without noise"
        case "gaussian":
            return f"Gaussian noise (noise multiplier {data['noise_multiplier']:.4g})"
        case "laplace":
            return f"Laplace noise (noise multiplier {data['noise_multiplier']:.4g})"
        case "sampled-group":
            records = "one record is" if data["group"] == 1 else f"{data['group']} records are"
            return (
                f"Poisson-sampled Gaussian noise where {records} replaced "
                f"(rate {data['sampling_probability']:.4g}, "
                f"noise multiplier {data['noise_multiplier']:.4g})"
            )
        case "discrete-laplace":
            return (
                f"discrete Laplace noise (parameter {data['noise_parameter']:.4g}, "
                f"sensitivity {data['sensitivity']})"
            )
        case _:
            return (
                f"randomized response (uniform answer with probability "
                f"{data['noise_parameter']:.4g}, {data['num_buckets']} answers)"
            )


def _refuse(what: str, why: str = "") -> PlanError:
    return PlanError(
        what,
        why=why or "a cost that cannot be computed must not be guessed",
        remedy="describe the run by Gaussian, Laplace, discrete Laplace and randomized response "
        "events, each of them Poisson-sampled or not, sampled groups, and their compositions",
    )


def _real(value: object, name: str, top: float = math.inf) -> float:
    """A finite number in [0, top]."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool | str | bytes) or not 0 <= number <= top or math.isinf(number):
        raise _refuse(f"{name} cannot be {value!r}", f"it is a finite number from 0 to {top:g}")
    return number


def _whole(value: object, name: str, low: int) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole and hasattr(value, "__index__") and not isinstance(value, bool):
        value, whole = value.__index__(), True
    if not isinstance(value, int) or not whole or value < low:
        raise _refuse(f"{name} cannot be {value!r}", f"it is a whole number of at least {low}")
    return value


def _to_json(event: DpEvent, depth: int) -> dict[str, Any]:
    from dp_accounting import dp_event as dp

    if depth > _DEEPEST:
        raise _refuse(f"an event is nested more than {_DEEPEST} deep")
    kind = type(event)
    if kind is dp.NoOpDpEvent:
        return {"event": "none"}
    if kind is dp.NonPrivateDpEvent:
        return {"event": "non-private"}
    if kind in (dp.GaussianDpEvent, dp.LaplaceDpEvent):
        name = "gaussian" if kind is dp.GaussianDpEvent else "laplace"
        noise = _real(event.noise_multiplier, "a noise multiplier")
        return {"event": name, "noise_multiplier": noise}
    if kind is dp.DiscreteLaplaceDpEvent:
        return {
            "event": "discrete-laplace",
            "noise_parameter": _real(event.noise_parameter, "a discrete Laplace parameter"),
            "sensitivity": _whole(event.sensitivity, "a discrete sensitivity", 0),
        }
    if kind is dp.RandomizedResponseDpEvent:
        return {
            "event": "randomized-response",
            "noise_parameter": _real(event.noise_parameter, "a probability", 1.0),
            "num_buckets": _whole(event.num_buckets, "a number of answers", 1),
        }
    if kind is group_event():
        return {
            "event": "sampled-group",
            "noise_multiplier": _real(event.noise_multiplier, "a noise multiplier"),
            "group": _whole(event.group, "a group", 1),
            "sampling_probability": _real(event.sampling_probability, "a sampling rate", 1.0),
        }
    if kind is dp.PoissonSampledDpEvent:
        return {
            "event": "poisson-sampled",
            "sampling_probability": _real(event.sampling_probability, "a sampling rate", 1.0),
            "of": _to_json(event.event, depth + 1),
        }
    if kind is dp.SelfComposedDpEvent:
        return {
            "event": "repeated",
            "count": _whole(event.count, "a number of repetitions", 0),
            "of": _to_json(event.event, depth + 1),
        }
    if kind is dp.ComposedDpEvent:
        return {"event": "composed", "of": [_to_json(part, depth + 1) for part in event.events]}
    raise _refuse(f"no accounting is known for {kind.__name__}")


_KEYS = {
    "none": set(),
    "non-private": set(),
    "gaussian": {"noise_multiplier"},
    "laplace": {"noise_multiplier"},
    "discrete-laplace": {"noise_parameter", "sensitivity"},
    "randomized-response": {"noise_parameter", "num_buckets"},
    "poisson-sampled": {"sampling_probability", "of"},
    "sampled-group": {"noise_multiplier", "group", "sampling_probability"},
    "repeated": {"count", "of"},
    "composed": {"of"},
}


def _from_json(data: object, depth: int) -> DpEvent:
    from dp_accounting import dp_event as dp

    if depth > _DEEPEST or not isinstance(data, Mapping):
        raise _refuse("this is not a description of an event")
    kind = data.get("event")
    if not isinstance(kind, str) or kind not in _KEYS or set(data) != _KEYS[kind] | {"event"}:
        raise _refuse(f"this is not a description of an event: kind {kind!r}, {sorted(data)}")
    if kind == "none":
        return dp.NoOpDpEvent()
    if kind == "non-private":
        return dp.NonPrivateDpEvent()
    if kind == "composed":
        if not isinstance(data["of"], list):
            raise _refuse("a composition lists its events")
        return dp.ComposedDpEvent([_from_json(part, depth + 1) for part in data["of"]])
    if kind == "gaussian":
        event = dp.GaussianDpEvent(data["noise_multiplier"])
    elif kind == "laplace":
        event = dp.LaplaceDpEvent(data["noise_multiplier"])
    elif kind == "discrete-laplace":
        event = dp.DiscreteLaplaceDpEvent(data["noise_parameter"], data["sensitivity"])
    elif kind == "randomized-response":
        event = dp.RandomizedResponseDpEvent(data["noise_parameter"], data["num_buckets"])
    elif kind == "sampled-group":
        event = group_event()(*(data[k] for k in _GROUP_FIELDS))
    elif kind == "poisson-sampled":
        inner = _from_json(data["of"], depth + 1)
        event = dp.PoissonSampledDpEvent(data["sampling_probability"], inner)
    else:
        event = dp.SelfComposedDpEvent(_from_json(data["of"], depth + 1), data["count"])
    _to_json(event, depth)  # Ranges and types are checked in one place.
    return event


def _collect(event: DpEvent, count: int, counts: dict[Loss, int], depth: int) -> bool:
    """Adds ``count`` times the mechanisms of an event; False where it has no privacy."""
    from dp_accounting import dp_event as dp

    kind = type(event)
    if kind is dp.ComposedDpEvent and depth <= _DEEPEST:
        # No short circuit: an unknown event beside one without privacy is still refused.
        kept = [_collect(part, count, counts, depth + 1) for part in event.events]
        return all(kept)
    if kind is dp.SelfComposedDpEvent:
        times = _whole(event.count, "a number of repetitions", 0)
        scratch: dict[Loss, int] = {}
        private = _collect(event.event, 1, scratch, depth + 1)
        for loss, repeats in scratch.items():
            if times:
                counts[loss] = counts.get(loss, 0) + count * times * repeats
        return private or not times
    if kind is dp.PoissonSampledDpEvent:
        return _collect_sampled(event, count, counts, depth)
    data = _to_json(event, depth)
    match data["event"]:
        case "none":
            return True
        case "non-private":
            return False
        case "gaussian" | "laplace":
            if data["noise_multiplier"] < 1e-9:
                return False
            loss = Loss(data["event"], data["noise_multiplier"])
        case "discrete-laplace":
            if not data["sensitivity"]:
                return True
            if data["sensitivity"] > _WIDEST:
                raise _refuse(f"a discrete sensitivity above {_WIDEST:,} is not supported")
            if data["noise_parameter"] < 1e-12:
                raise _refuse("a discrete Laplace parameter below 1e-12 is no distribution")
            loss = Loss("discrete-laplace", data["noise_parameter"], data["sensitivity"])
        case "sampled-group":
            rate, size = data["sampling_probability"], data["group"]
            if rate == 0.0:
                return True
            if data["noise_multiplier"] < 1e-9 * size:
                return False
            loss = (
                Loss("gaussian", data["noise_multiplier"] / size)
                if rate == 1.0
                else Loss(
                    "group",
                    data["noise_multiplier"],
                    size,
                    -math.expm1(size * math.log1p(-rate)),
                    rate,
                )
            )
        case _:
            if data["num_buckets"] == 1 or data["noise_parameter"] == 1.0:
                return True
            if data["noise_parameter"] < 1e-300:
                return False
            loss = Loss("randomized-response", data["noise_parameter"], data["num_buckets"])
    counts[loss] = counts.get(loss, 0) + count
    return True


def _collect_sampled(event: DpEvent, count: int, counts: dict[Loss, int], depth: int) -> bool:
    """One Poisson sample, to which everything below is applied."""
    rate = _real(event.sampling_probability, "a sampling rate", 1.0)
    inner: dict[Loss, int] = {}
    private = _collect(event.event, 1, inner, depth + 1)
    if rate == 0.0:
        return True
    if not private:
        return False
    if rate == 1.0:
        for loss, repeats in inner.items():
            counts[loss] = counts.get(loss, 0) + count * repeats
        return True
    merged = _merged(inner)
    if not merged:
        return True
    (loss, repeats), *others = merged
    # Every pair here is its own mirror image, which is what the bound for sampling needs.
    if others or repeats != 1 or loss.rate != 1.0:
        raise _refuse(
            f"no accounting is known for Poisson sampling of {describe(event.event)}",
            "amplification by sampling is proved here for Gaussian noise and for one mechanism of "
            "another kind",
        )
    sampled = Loss(loss.kind, loss.noise, loss.width, rate)
    counts[sampled] = counts.get(sampled, 0) + count
    return True


def _merged(counts: Mapping[Loss, int]) -> tuple[tuple[Loss, int], ...]:
    """All unsampled Gaussians as one; everything else counted and sorted."""
    plain = {loss: n for loss, n in counts.items() if loss.kind == "gaussian" and loss.rate == 1.0}
    rest = [(loss, n) for loss, n in counts.items() if loss not in plain]
    if plain:
        precision = math.fsum(n / loss.noise / loss.noise for loss, n in plain.items())
        rest.append((Loss("gaussian", 1.0 / math.sqrt(precision)), 1))
    return tuple(sorted(rest))
