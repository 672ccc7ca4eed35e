"""What each role does when it is told where the session stands: one turn, without waiting.

A turn may be cut off anywhere and taken again. ``report`` sends one message to the coordinator and
returns its answer, the orders; what is out of reach raises and is tried again in the next turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tacit.errors import SessionError
from tacit.multiparty.agreement import REGISTRATION, Agreement
from tacit.multiparty.coordinator import agreed_hash
from tacit.multiparty.party import Party
from tacit.multiparty.refusals import RefusedError
from tacit.multiparty.server import Server
from tacit.multiparty.shuffler import Deliver, Shuffler
from tacit.multiparty.state import ORDER, Phase
from tacit.multiparty.store import Store

Orders = dict[str, Any]
Report = Callable[[dict[str, Any]], Orders]


def message(agreement: Agreement, kind: str, number: int, body: Any = None) -> dict[str, Any]:
    """A report to the coordinator."""
    return {"session": agreement.digest.hex(), "kind": kind, "round": number, "body": body}


def check_orders(store: Store, agreement: Agreement, orders: Orders) -> None:
    """Believe only the coordinator that this session began with.

    Raises:
        RefusedError: The orders are of another session, of another coordinator, or turn back.
    """
    if orders.get("session") != agreement.digest.hex():
        raise RefusedError("session", "the coordinator is configured for another session")
    known = store.get("term")
    if known is None:
        store.put({"term": orders["term"]})
    elif known != orders["term"]:
        raise RefusedError(
            "coordinator",
            "a second coordinator speaks for this session",
            remedy="stop it; the first one goes on from its own folder",
        )


def reached(orders: Orders, number: int, phase: Phase) -> bool:
    """Whether the session has brought a round this far."""
    now = Phase(orders["phase"])
    if now is Phase.ABORTED or orders["round"] != number:
        return False
    return ORDER.index(now) >= ORDER.index(phase)


def drive_party(party: Party, report: Report, held: Callable[[int, int], bytes]) -> Orders:
    """One party's turn.

    Args:
        party: The party.
        report: Speaks to the coordinator.
        held: Asks another party for what it holds in common in a round.

    Returns:
        The latest orders.
    """
    agreement = party.agreement
    orders = report(message(agreement, "look", 0))
    check_orders(party.store, agreement, orders)
    number = orders["round"]
    if orders["phase"] == Phase.ABORTED:
        party.abort(number, orders["why"])
        return orders
    if party.aborted:
        return report(message(agreement, "abort", number, party.aborted))
    if party.state(number).phase is Phase.OPEN and orders["delivered"] is not None:
        party.freeze(number, int(orders["delivered"][str(party.number)]))
    if party.state(number).phase is Phase.FROZEN:
        others = [p for p in range(agreement.plan.parties) if p != party.number]
        try:
            party.reconcile(number, {other: held(other, number) for other in others})
        except RefusedError as refusal:
            if refusal.cause != "state":  # a peer has not frozen the round yet
                raise
            return orders
    state = party.state(number)
    if state.phase is Phase.RECONCILED:
        if not reached(orders, number, Phase.RECONCILED):
            return report(message(agreement, "reconciled", number, state.to_dict()["pairs"]))
        _check_agreed(party, number, orders)
        party.aggregate(number, orders["agreed"])
        state = party.state(number)
    if state.phase is Phase.AGGREGATED:
        if not reached(orders, number, Phase.RELEASED):
            body = [state.agreed, state.share]
            return report(message(agreement, "aggregated", number, body))
        shares = {name: (report[0], report[1]) for name, report in orders["shares"].items()}
        party.release(number, shares)
    return orders


def _check_agreed(party: Party, number: int, orders: Orders) -> None:
    """The hash is over what all parties said, this one among them."""
    said = orders["pairs"] or {}
    mine = party.state(number).to_dict()["pairs"]
    own = {other: list(common) for other, common in mine.items()}
    if len(said) != party.agreement.plan.parties or agreed_hash(said) != orders["agreed"]:
        raise SessionError("the coordinator's agreement is not over what the parties said")
    if {other: list(common) for other, common in said[str(party.number)].items()} != own:
        raise SessionError("the coordinator's agreement is over other slots than this party's")


def drive_shuffler(
    shuffler: Shuffler, report: Report, deliver: Deliver, workers: int = 1
) -> Orders:
    """The shuffler's turn."""
    agreement = shuffler.agreement
    orders = report(message(agreement, "look", 0))
    check_orders(shuffler.store, agreement, orders)
    number = orders["round"]
    if orders["phase"] == Phase.ABORTED:
        shuffler.abort(orders["why"])
        return orders
    if shuffler.aborted:
        return report(message(agreement, "abort", number, shuffler.aborted))
    if orders["phase"] == Phase.OPEN:
        shuffler.open(number)
        missing = shuffler.missing(number)
        heard = agreement.plan.users if missing == 0 else len(shuffler.taken(number))
        return report(message(agreement, "uploads", number, heard))
    if orders["phase"] == Phase.FROZEN and orders["delivered"] is None:
        shuffler.freeze(number)
        missing = shuffler.missing(number)
        if number != REGISTRATION and missing and not agreement.leave_out:
            shuffler.abort(f"{missing} users who registered missed round {number}")
            return report(message(agreement, "abort", number, shuffler.aborted))
        sent = shuffler.forward(number, deliver, workers)
        return report(message(agreement, "delivered", number, sent))
    return orders


def drive_server(server: Server, report: Report, share: Callable[[int, int], bytes]) -> Orders:
    """The server's turn.

    Args:
        server: The server.
        report: Speaks to the coordinator.
        share: Fetches a party's share of a round.
    """
    agreement = server.agreement
    orders = report(message(agreement, "look", 0))
    check_orders(server.store, agreement, orders)
    number = orders["round"]
    if orders["phase"] == Phase.RELEASED and number != REGISTRATION:
        shares = {name: (said[0], said[1]) for name, said in orders["shares"].items()}
        try:
            found = server.publish(number, shares, lambda party: share(party, number))
        except RefusedError as refusal:
            if refusal.cause != "state":  # a party has not heard of the release yet
                raise
            return orders
        return report(message(agreement, "published", number, found))
    return orders
