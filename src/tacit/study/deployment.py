"""A whole DPA session in separate processes, from a graph to answers: plan, run, learn.

The parties' sums are what :mod:`tacit.multiparty.simulation` would release; what is learnt from
them is the method's own. This process plays everybody's administrator: it takes the graph apart,
hands each agent its users' records, and compares answers with labels at the end. In earnest nobody
holds the graph.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.errors import PlanError
from tacit.multiparty.agreement import COUNTS, Agreement
from tacit.multiparty.session import Dummies, SessionPlan

if TYPE_CHECKING:
    from tacit.graph import Graph
    from tacit.methods.dpa import DPA
    from tacit.multiparty.records import Records
    from tacit.privacy import Ledger, Plan, Statement

Told = Callable[[dict[str, Any]], None]

_ASSUMED = (
    "Every role was a process of its own on one machine, whose owner sees all of them. On hosts of "
    "their own, docs/deployment.md says who sees what, and what is out of scope."
)
_SURE = 143
"""A dummy count past its bound has a probability below 2^-143 (proofs/dpa.md, Theorem 4)."""


@dataclass(frozen=True)
class Processes:
    """How a session is spread over processes.

    Attributes:
        agents: Processes that act for users.
        connections: ``one`` certificate and connection per process, or one for ``each`` user.
        seconds: How long a round may stay open or stand still.
        most_seconds: How long the whole session may take.
        leave_out: Whether rounds go on without users who registered and then missed them.
    """

    agents: int = 1
    connections: str = "one"
    seconds: float = 600.0
    most_seconds: float = 3600.0
    leave_out: bool = False

    def __post_init__(self) -> None:
        good = self.agents >= 1 and self.connections in ("one", "each")
        if not good or self.seconds <= 0 or self.most_seconds <= 0:
            raise PlanError(
                "a session needs at least one agent, connections 'one' or 'each', and time"
            )


def run_session(
    graph: Graph,
    model: DPA,
    folder: Path,
    ledger: Ledger,
    processes: Processes,
    told: Told | None = None,
) -> dict[str, Any]:
    """Run a session between processes on this machine and learn from what it released.

    Args:
        graph: With its split.
        model: The method, unfitted.
        folder: Where keys, state and sums lie; a session that was cut short there goes on.
        ledger: Charged round by round, each before anything of it can be seen.
        processes: How it is spread.
        told: Told where the session stands.

    Returns:
        ``metrics``, ``seconds``, ``bytes_uploaded``, ``payload_mb_per_s`` and what was promised.

    Raises:
        PlanError: The plan cannot run between processes.
        SessionError: The session was aborted or took too long; every process has ended.
    """
    from tacit.graph import fingerprint
    from tacit.methods.base import accuracies
    from tacit.methods.dpa import finish, read_degree, session_of
    from tacit.multiparty.config import Charging
    from tacit.multiparty.deployment import Deployment
    from tacit.multiparty.records import Records

    started = time.perf_counter()
    plan = model.plan(graph.facts())
    if model.noise == "seeded":
        raise PlanError(
            "parties draw their noise from the operating system",
            remedy="leave noise at secure, or simulate the session with 'tacit fit --method dpa'",
        )
    if plan.settings.clip != "sent":
        raise PlanError(
            'lists that are cut by who receives (clip="received") need somebody who sees them all',
            remedy="set clip=\"sent\", or simulate the session with 'tacit fit --method dpa'",
        )
    deal = session_of(plan, read_degree(plan, graph))
    agreement = _agreement(folder, plan, deal, processes, model.seed)
    records = Records.of(graph, np.minimum(graph.out_degrees, deal.longest))
    files = _hand_out(folder, records, min(processes.agents, deal.users))
    charging = Charging(
        str(ledger.path.resolve()), fingerprint(graph), plan.unit.name, plan.delta
    )  # fmt: skip
    deployment = Deployment(
        folder, agreement, files, charging=charging, connections=processes.connections
    )
    with deployment:
        deployment.wait(lambda said: bool(said["done"]), processes.most_seconds, told)
        measured = deployment.measured()
    session_seconds = time.perf_counter() - started
    released = released_sums(folder, agreement)
    outcome = finish(
        plan, deal, released, records, seed=model.seed, progress=lambda *_: None
    )  # fmt: skip
    result = {
        "metrics": {
            "test_accuracy": None,
            "val_accuracy": None,
            **accuracies(outcome.posteriors, graph),
        },
        "seconds": time.perf_counter() - started,
        "session_seconds": session_seconds,
        **measured,
        "session": agreement.session,
        "parties": deal.parties,
        "users": deal.users,
        "slots_per_user": agreement.slots,
        "statement": _statement(model, plan).to_dict(),
        "out": str(folder),
    }
    (folder / "result.json").write_text(json.dumps(_plain(result), indent=2) + "\n")
    return result


def released_sums(folder: Path, agreement: Agreement) -> dict[str, np.ndarray]:
    """What a session's server released, by round, as real numbers."""
    from tacit.multiparty.ring import to_real

    found = {}
    for number, turn in enumerate(agreement.plan.rounds, 1):
        sums = np.load(folder / "server" / f"released-{number}.npy", allow_pickle=False)
        found[turn.name] = to_real(sums, agreement.plan.fraction_bits)
    return found


def most_dummies(dummies: Dummies) -> int:
    """Where dummies are cut off: public, and reached with probability below 2^-143."""
    if dummies.kind == "none":
        return 0
    if dummies.kind == "gaussian":
        return 2 * dummies.shift  # fourteen standard deviations to either side
    return dummies.shift + ceil(_SURE / -log2(1 - dummies.rate))


def round_events(plan: Plan, deal: SessionPlan) -> dict[str, Any]:
    """What each round costs by itself, and the numbers of slots; together what the plan costs."""
    from tacit.privacy.events import event_to_json

    charged = {stage.name: stage for stage in plan.charged}
    costs = {turn.name: charged.get(turn.content) for turn in deal.rounds}
    costs[COUNTS] = charged.get("counts")
    found = {}
    for name, stage in costs.items():
        if stage is None:
            raise PlanError(f"the plan does not say what {name} costs")
        one = stage if name == COUNTS else replace(stage, rounds=1)
        found[name] = event_to_json(one.event)
    return found


def _agreement(
    folder: Path, plan: Plan, deal: SessionPlan, processes: Processes, seed: int
) -> Agreement:
    """A new session, or the one that this folder began with the same plan."""
    began = folder / "session.json"
    events = round_events(plan, deal)
    if began.exists():
        earlier = Agreement.from_json(began.read_text())
        if (earlier.plan, dict(earlier.events), earlier.cut_seed) != (deal, events, seed):
            raise PlanError(
                f"{folder} holds another session",
                remedy="repeat the command that began it, or name an empty folder",
            )
        return earlier
    most, seconds = most_dummies(deal.dummies), processes.seconds
    name = secrets.token_hex(16)
    return Agreement(name, deal, most, seconds, events, seed, processes.leave_out)


def _hand_out(folder: Path, records: Records, agents: int) -> list[tuple[int, int, Path]]:
    """One file of records for each agent, about as many users in each."""
    from tacit.multiparty.users import save_records

    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for part in np.array_split(records.users, agents):
        first, last = int(part[0]), int(part[-1])
        path = folder / f"records-{first}.npz"
        save_records(path, _some(records, first, last))
        found.append((first, last, path))
    return found


def _some(records: Records, first: int, last: int) -> Records:
    """The records of a range of users."""
    rows = slice(first, last + 1)
    lo, hi = int(records.indptr[first]), int(records.indptr[last + 1])
    return replace(
        records,
        **{
            name: getattr(records, name)[rows]
            for name in ("users", "features", "labels", "train", "val", "sent", "dummies")
        },
        indptr=records.indptr[first : last + 2] - lo,
        indices=records.indices[lo:hi],
    )


def _statement(model: DPA, plan: Plan) -> Statement:
    """What the method promises, said of processes instead of a simulation."""
    from tacit.privacy.noise import NoiseSource

    said = model.state(plan, NoiseSource.fresh())
    kept = [text for text in said.assumptions if not text.startswith("A session is simulated")]
    return replace(said, assumptions=(_ASSUMED, *kept))


def _plain(value: Any) -> Any:
    """JSON knows no infinity."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value
