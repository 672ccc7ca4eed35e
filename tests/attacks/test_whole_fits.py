"""Every shipped method goes through the generic audit of whole fits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.attacks.audit import audit_targets
from tacit.attacks.games import fit_targets
from tacit.methods import METHOD_NAMES, METHODS, Method
from tacit.privacy.units import Unit

ALL = tacit.Node(links="all", max_degree=3)
OWN = tacit.Node(max_degree=2)
CASES: dict[str, tuple[Unit, dict[str, Any]]] = {
    "dpa": (OWN, {}),
    "dpdgc": (tacit.Edge(), {"epochs": 1}),
    "gap": (tacit.Edge(), {"epochs": 1, "encoder": False, "carry": "labels"}),
    "mlp": (OWN, {"steps": 2}),
    "census": (ALL, {"epochs": 1, "encoder_epochs": 1}),
    "privgnn": (ALL, {"epochs": 1, "student_epochs": 1, "queries": 4}),
    "edgerand": (tacit.Edge(), {"epochs": 1}),
    "lapgraph": (tacit.Edge(), {"epochs": 1}),
    "sage-edge": (tacit.Edge(), {"epochs": 1}),
    "sage-node": (OWN, {"epochs": 1, "steps": 2}),
}
WITHOUT_PRIVACY = {"gcn", "sage"}


def method(name: str) -> Method:
    unit, overrides = CASES[name]
    made: Method = METHODS[name](unit, 4.0, 1e-5, overrides=overrides)
    return made


def test_every_method_has_a_case() -> None:
    assert set(CASES) | WITHOUT_PRIVACY == set(METHOD_NAMES)


@pytest.mark.parametrize("name", CASES)
def test_a_whole_fit_can_be_played(name: str) -> None:
    plan, (target,) = fit_targets(method(name), 20, False, 1)
    assert target.claim.epsilon == plan.cost.epsilon <= 4
    released = target.games[0].release(np.array([False, True]))
    assert np.isfinite(released).all()
    assert released.shape[1] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_whole_fit_holds(name: str) -> None:
    _, (target,) = fit_targets(method(name), 60, False, 1)
    (finding,) = audit_targets([replace(target, games=target.games[:2])])
    assert not finding.broken
