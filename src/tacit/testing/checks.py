"""The checks. Each takes a case and raises AssertionError with a sentence."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path

import numpy as np

from tacit.errors import BudgetError, UnitError
from tacit.graph import Graph, PublicFacts, fingerprint
from tacit.methods.base import Method
from tacit.methods.run import load_run, save_run
from tacit.privacy.plan import Plan, Stage
from tacit.privacy.units import KNeighbors, Node
from tacit.testing.case import (
    Case,
    NotApplicable,
    RecordingSource,
    RefusingLedger,
    changed_node,
    own_ledger,
    with_source,
)


def check_calibration_never_overshoots(case: Case) -> None:
    """The plan's epsilon is at most the target, and what is charged costs what is stated."""
    from tacit.privacy.accounting import epsilon_pld

    known = case.graph.facts()
    shapes = (known, replace(known, nodes=5000, train_nodes=2500, directed=True))
    for unit in (case.unit, *case.relations):
        for target in (0.5, 8.0):
            for facts in shapes:
                method = case.make(unit, target, seed=0, noise="secure")
                plan = method.plan(facts)
                spent = epsilon_pld(plan.event, plan.delta)
                _require(
                    spent <= target and plan.cost.epsilon <= target,
                    f"asked for epsilon {target} under {unit}, planned {spent}",
                )
                _require(plan.delta == method.delta, "the plan has another delta than was asked")


def check_plan_reads_public_facts_alone(case: Case) -> None:
    """Two graphs with equal public facts get equal plans, and planning twice gives one plan."""
    facts = case.graph.facts()
    _require(isinstance(facts, PublicFacts), "a graph's facts are not public facts")
    plan = case.method().plan(facts)
    _require(plan == case.method().plan(replace(facts)), "planning twice gives two plans")
    _require(plan.unit == case.method().unit, "the plan is for another unit")


def check_ledger_is_charged_the_plan(case: Case) -> None:
    """The ledger's only entry is the plan's event, and its total is the statement's epsilon."""
    import json

    from tacit.privacy.events import event_to_json

    with own_ledger() as ledger:
        method = case.method().fit(case.graph, ledger=ledger)
        plan, data = method.fitted.plan, fingerprint(case.graph)
        entries = ledger.entries(data)
        if not plan.stages:
            _require(not entries, "a plan that reads nothing protected was charged")
            return
        _require(len(entries) == 1, f"one fit made {len(entries)} charges")
        event = event_to_json(plan.charged_event)
        _require(json.loads(entries[0].event_json) == event, "charged for another event")
        if plan.accounting == "sound":
            _require(plan.charged == plan.stages, "sound accounting charges something else")
            total = ledger.total(data, plan.unit.name, plan.delta).epsilon
            _require(
                math.isclose(total, method.statement.epsilon, rel_tol=1e-9),
                f"the ledger says {total}, the statement {method.statement.epsilon}",
            )


def check_charge_comes_before_noise(case: Case) -> None:
    """Nothing is drawn before the ledger has paid, and nothing at all where it refuses."""
    method = case.method()
    if not method.plan(case.graph.facts()).stages:
        raise NotApplicable("nothing is charged")
    with own_ledger() as ledger:
        source = RecordingSource(paid=lambda: bool(ledger.entries()))
        with_source(method, source).fit(case.graph, ledger=ledger)
        _require(source.unpaid == 0, f"{source.unpaid} draws came before the charge")
        drawn = source.noise or source.counts or source.choices or source.coins
        _require(bool(drawn), "no noise was drawn from the source")
        refusing = RefusingLedger(ledger.path)
        source = RecordingSource()
        method = with_source(case.method(), source)
        try:
            method.fit(case.graph, ledger=refusing)
        except BudgetError:
            numbers = source.noise + source.counts + source.choices + source.coins
            _require(not numbers, "noise was drawn although the ledger refused")
            _require(method._fitted is None, "a refused fit left a result")
            return
        raise AssertionError("the fit went on although the ledger refused")


def check_every_draw_comes_out_of_the_plan(case: Case) -> None:
    """Scales, counts, rates and batches drawn are those of the plan's stages, all and no other."""
    source = RecordingSource()
    with own_ledger() as ledger:
        method = with_source(case.method(), source).fit(case.graph, ledger=ledger)
    plan = method.fitted.plan
    _require(not source.other, f"drew {source.other[:1]}, which no stage has")
    sizes = case.sizes(method) if case.sizes else {}
    for mechanism, draws in (("gaussian", source.noise), ("geometric", source.counts)):
        noisy = [s for s in plan.stages if s.noise_multiplier > 0 and s.mechanism == mechanism]
        _check_draws(noisy, draws, sizes)
    # Randomised response by coins draws no numbers; a reported largest entry has Laplace noise.
    if source.choices:
        noisy = [stage for stage in plan.stages if stage.mechanism == "randomized-response"]
        _check_draws(noisy, source.choices, sizes)
    _check_batches(plan, source, case.coins(method) if case.coins else {})


def _check_draws(noisy: list[Stage], draws: list[tuple[float, int]], sizes: dict[str, int]) -> None:
    """Each draw has a stage's scale, and each stage as many numbers as its rounds answer."""
    # Grids are powers of two, so a draw shows its stage by the scale's mantissa.
    drawn: dict[float, int] = {}
    for scale, count in draws:
        key = _match(math.frexp(scale)[0], [math.frexp(s.noise_std)[0] for s in noisy])
        drawn[key] = drawn.get(key, 0) + count
    for key in {math.frexp(stage.noise_std)[0] for stage in noisy}:
        alike = [s for s in noisy if math.isclose(math.frexp(s.noise_std)[0], key, rel_tol=1e-9)]
        got = drawn.get(_match(key, list(drawn) or [0.0]), 0)
        _require(
            got >= sum(stage.rounds for stage in alike),
            f"{alike[0].name} drew too little noise: {got} numbers",
        )
        if all(stage.name in sizes for stage in alike):
            due = sum(stage.rounds * sizes[stage.name] for stage in alike)
            _require(got == due, f"{alike[0].name} drew {got} numbers of noise, the plan has {due}")


def _check_batches(plan: Plan, source: RecordingSource, others: dict[float, int]) -> None:
    """One coin per training record and step, at the plan's rate; fair coins are dropout masks."""
    rates = {stage.sampling_rate for stage in plan.stages}
    for rate, _ in source.coins:
        known = rate in rates or rate in others or rate == 0.5
        _require(known, f"sampled at rate {rate}, which no stage has")
    for rate, due in others.items():
        got = sum(count for r, count in source.coins if r == rate)
        _require(got == due, f"{got} coins of rate {rate}, the case has {due}")
    for rate in rates - {0.5, 1.0}:
        got = sum(count for r, count in source.coins if r == rate)
        steps = sum(stage.rounds for stage in plan.stages if stage.sampling_rate == rate)
        due = steps * plan.facts.train_nodes
        _require(got == due, f"{got} coins of rate {rate}, the plan has {due}")


def check_statement_is_recomputed(case: Case) -> None:
    """The statement's figures are the accountants' figures of the plan's events."""
    from tacit.privacy.accounting import epsilon_pld, epsilon_rdp
    from tacit.privacy.events import describe

    with own_ledger() as ledger:
        method = case.method().fit(case.graph, ledger=ledger)
    plan, said = method.fitted.plan, method.statement
    right = epsilon_pld if said.accounting == "sound" else epsilon_rdp
    epsilon = right(plan.event, plan.delta)
    _require(
        math.isclose(said.epsilon, epsilon, rel_tol=1e-9, abs_tol=1e-12),
        f"the statement says {said.epsilon}, the events cost {epsilon}",
    )
    _require(said.epsilon <= case.epsilon, "the statement exceeds the budget")
    _require((said.unit, said.relation) == (case.unit.name, case.unit.relation), "another unit")
    events = tuple(f"{stage.name}: {describe(stage.event)}" for stage in plan.stages)
    _require(said.events == events, "the statement lists other events than ran")
    _require(bool(said.theorems) == bool(plan.stages), "noise without a theorem")
    stamp = "" if plan.accounting == "sound" else "paper accounting"
    _require(said.stamp == stamp, f"stamped {said.stamp!r} instead of {stamp!r}")


def check_seeded_noise_is_stamped(case: Case) -> None:
    """Noise from a seed repeats, is stamped, and is charged as no privacy."""
    with own_ledger() as ledger:
        first = case.method(noise="seeded").fit(case.graph, ledger=ledger)
        second = case.method(noise="seeded").fit(case.graph, ledger=ledger)
        spent = [entry.epsilon for entry in ledger.entries()]
    same = np.array_equal(first.fitted.outcome.posteriors, second.fitted.outcome.posteriors)
    _require(same, "two seeded runs differ")
    if first.fitted.plan.stages:
        _require(first.statement.stamp == "not private", "seeded noise is not stamped")
        _require(all(map(math.isinf, spent)), "the ledger takes seeded noise for privacy")


def check_secure_noise_differs(case: Case) -> None:
    """Two secure runs with one seed differ: privacy noise is not the seed's."""
    if not case.method().plan(case.graph.facts()).stages:
        raise NotApplicable("no noise is needed")
    with own_ledger() as ledger:
        runs = [case.method().fit(case.graph, ledger=ledger) for _ in range(2)]
    first, second = (run.fitted.outcome for run in runs)
    arrays = [(first.released or first.weights), (second.released or second.weights)]
    _require(
        any(not np.array_equal(arrays[0][key], arrays[1][key]) for key in arrays[0]),
        "two secure runs released the same numbers",
    )


def check_infinite_epsilon_is_the_plain_twin(case: Case) -> None:
    """Without a budget nothing is drawn, units agree, and the twin gives the same answers."""
    answers = []
    for unit in (case.unit, *case.relations):
        source = RecordingSource()
        method = case.make(unit, math.inf, seed=3, noise="secure")
        with own_ledger() as ledger:
            method.fit(case.graph, ledger=ledger)
            again = case.make(unit, math.inf, seed=3, noise="secure")
            with_source(again, source).fit(case.graph, ledger=ledger)
        stamp = method.statement.stamp
        if method.fitted.plan.stages:
            _require(stamp.startswith("no privacy"), "an infinite epsilon is not stamped")
        drawn = source.noise or source.counts or source.choices or source.coins
        _require(not drawn, "noise was drawn at an infinite epsilon")
        answers += [method.predict_proba(), again.predict_proba()]
    for other in answers[1:]:
        _require(np.array_equal(answers[0], other), "units disagree at an infinite epsilon")
    if case.twin is not None:
        twin = case.twin(case.graph, 3)
        gap = float(np.abs(twin - answers[0]).max())
        _require(gap <= 1e-5, f"differs from the twin without privacy by {gap}")


def check_neighbours_stay_within_the_claim(case: Case) -> None:
    """Sampled neighbours never move a stage's answers by more than its plan claims."""
    if case.answers is None:
        raise NotApplicable("the case gives no answers")
    plan = case.method().plan(case.graph.facts())
    claim = _claim(plan, case.stage)
    rng = np.random.default_rng(11)
    promised = case.unit.neighbours(case.graph, rng)
    for index, other in enumerate(islice(promised, 40)):
        moved = _moved(case, plan, case.graph, other, index)
        _require(moved <= claim + 1e-6, f"a neighbour moves {case.stage} by {moved} of {claim}")


def check_witness_reaches_the_claim(case: Case) -> None:
    """Where a claim is tight a witness reaches it, and would exceed two thirds of it."""
    if case.answers is None or not case.witnesses:
        raise NotApplicable("the case gives no witness")
    for witness in case.witnesses:
        plan = case.method().plan(witness.first.facts())
        claim = _claim(plan, case.stage)
        moved = _moved(case, plan, witness.first, witness.second, 0)
        _require(moved <= claim + 1e-6, f"the witness moves {moved}, beyond the claim {claim}")
        _require(moved >= 0.999 * claim, f"the witness moves {moved} of {claim}: not tight")
        _require(moved > claim * 2 / 3, "the check has no power")


def check_inputs_are_not_mutated(case: Case) -> None:
    """Fit and predict leave the graph and the plan as they were."""
    method = case.method()
    plan = method.plan(case.graph.facts())
    before = {
        field.name: np.copy(value)
        for field in fields(case.graph)
        if isinstance(value := getattr(case.graph, field.name), np.ndarray)
    }
    told = plan.to_dict()
    with own_ledger() as ledger:
        method.fit(case.graph, plan, ledger)
        posteriors = method.predict_proba().copy()
        method.predict_proba(case.graph, ledger=ledger)
    for name, array in before.items():
        _require(np.array_equal(array, getattr(case.graph, name)), f"{name} was changed")
    _require(method.fitted.plan == plan and plan.to_dict() == told, "the plan was changed")
    _require(
        np.array_equal(posteriors, method.predict_proba()), "predicting changed the predictions"
    )


def check_saved_runs_predict_the_same(case: Case) -> None:
    """Fit, save, load, predict: the same posteriors, plan and statement, bit for bit."""
    reload = case.reload or _reloaded
    with own_ledger() as ledger, tempfile.TemporaryDirectory() as folder:
        method = case.method().fit(case.graph, ledger=ledger)
        loaded = reload(method, Path(folder) / "run")
    _require(np.array_equal(method.predict_proba(), loaded.predict_proba()), "predictions differ")
    _require(method.fitted.plan == loaded.fitted.plan, "plans differ")
    _require(method.statement == loaded.statement, "statements differ")
    weights, again = method.fitted.outcome.weights, loaded.fitted.outcome.weights
    _require(weights.keys() == again.keys(), "weights got lost")
    for name, array in weights.items():
        _require(np.array_equal(array, again[name]), f"{name} changed on disk")


def check_prediction_for_a_new_graph_is_charged(case: Case) -> None:
    """A new graph is charged to its own account for the inference stages, and only for them."""
    with own_ledger() as ledger:
        method = case.method().fit(case.graph, ledger=ledger)
        plan, before = method.fitted.plan, len(ledger.entries())
        method.predict_proba()
        _require(len(ledger.entries()) == before, "predicting on the training graph was charged")
        names = method.inference_stages(plan)
        found = method.predict_proba(case.graph, ledger=ledger)
        due = 1 if plan.stages and names else 0
        _require(len(ledger.entries()) == before + due, "a new graph was charged wrongly")
    rows = found.sum(axis=1)
    _require(bool(np.allclose(rows, 1, atol=1e-4)), "posteriors do not add up to one")


def check_global_randomness_is_untouched(case: Case) -> None:
    """The generators of Python, numpy and torch are left as they were."""
    import torch

    before = (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002
    with own_ledger() as ledger:
        method = case.method().fit(case.graph, ledger=ledger)
        method.predict_proba(case.graph, ledger=ledger)
    _require(random.getstate() == before[0], "Python's generator was used")
    now, then = np.random.get_state(), before[1]  # noqa: NPY002
    _require(all(np.array_equal(a, b) for a, b in zip(now, then, strict=True)), "numpy's was used")
    _require(torch.equal(torch.get_rng_state(), before[2]), "torch's generator was used")


def check_unsupported_units_are_refused(case: Case) -> None:
    """A unit under which nothing is proved gives a UnitError with a reason, before any charge."""
    if not case.refused:
        raise NotApplicable("the method supports every unit")
    for unit in case.refused:
        try:
            case.make(unit, case.epsilon, seed=0, noise="secure").plan(case.graph.facts())
        except UnitError as error:
            _require(bool(error.why) and bool(error.remedy), f"{unit} is refused without a reason")
            continue
        raise AssertionError(f"{unit} was planned for")


CHECKS: tuple[Callable[[Case], None], ...] = (
    check_calibration_never_overshoots,
    check_plan_reads_public_facts_alone,
    check_ledger_is_charged_the_plan,
    check_charge_comes_before_noise,
    check_every_draw_comes_out_of_the_plan,
    check_statement_is_recomputed,
    check_seeded_noise_is_stamped,
    check_secure_noise_differs,
    check_infinite_epsilon_is_the_plain_twin,
    check_neighbours_stay_within_the_claim,
    check_witness_reaches_the_claim,
    check_inputs_are_not_mutated,
    check_saved_runs_predict_the_same,
    check_prediction_for_a_new_graph_is_charged,
    check_global_randomness_is_untouched,
    check_unsupported_units_are_refused,
)
"""Every check, for ``pytest.mark.parametrize``."""


def check_method(case: Case) -> tuple[str, ...]:
    """Run every check.

    Args:
        case: The method, its unit and a graph.

    Returns:
        Names of the checks that had nothing to look at in this case.

    Raises:
        AssertionError: A check failed; the message says which and why.
    """
    skipped = []
    for check in CHECKS:
        try:
            check(case)
        except NotApplicable:
            skipped.append(check.__name__)
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from error
    return tuple(skipped)


def _require(right: bool, otherwise: str) -> None:
    if not right:
        raise AssertionError(otherwise)


def _reloaded(method: Method, folder: Path) -> Method:
    return load_run(save_run(method, folder))


def _match(key: float, known: list[float]) -> float:
    for other in known:
        if math.isclose(key, other, rel_tol=1e-9):
            return other
    raise AssertionError(f"noise of mantissa {key} was drawn, which no stage has")


def _claim(plan: Plan, name: str) -> float:
    """How far all rounds of a stage may move together, by its plan: in L1 for geometric noise."""
    stage = plan.stage(name)
    if stage.mechanism == "geometric":
        return stage.noise_std / stage.noise_multiplier * stage.rounds
    return stage.noise_std / stage.noise_multiplier * math.sqrt(stage.rounds)


def _moved(case: Case, plan: Plan, first: Graph, second: Graph, seed: int) -> float:
    """The distance between a stage's answers, over all rounds, on two graphs: L1 or L2."""
    if case.answers is None:
        return 0.0
    left, right = case.answers(plan, first, seed), case.answers(plan, second, seed)
    whole = isinstance(case.unit, KNeighbors) or (
        isinstance(case.unit, Node) and case.unit.links == "all"
    )
    own_rows = whole and first.public is None
    pure = plan.stage(case.stage).mechanism == "geometric"
    total = 0.0
    for a, b in zip(left, right, strict=True):
        difference = np.asarray(a, np.float64) - np.asarray(b, np.float64)
        if own_rows:
            difference[changed_node(first, second)] = 0  # That row is for that node alone.
        total += float(np.abs(difference).sum() if pure else (difference**2).sum())
    return total if pure else math.sqrt(total)
