"""What a role refuses, by cause. Refusing changes nothing, and nothing that was kept is lost."""

from __future__ import annotations

from collections import Counter
from threading import Lock

from tacit.errors import SessionError

CAUSES = {
    "certificate": "the caller's certificate does not entitle it to this",
    "session": "it belongs to another session, or to another configuration of this one",
    "coordinator": "it comes from another coordinator than the one this session began with",
    "round": "the round is not the one that is open",
    "late": "the round was frozen before it came",
    "length": "it has another length than the session's constant",
    "oversize": "it is larger than anything the session sends",
    "garbage": "it cannot be read, or was changed on its way",
    "slot": "it names a slot that is not registered here",
    "role": "it names a role or party that it does not belong to",
    "conflict": "it was sent before with other contents",
    "state": "it asks for what is not ready",
    "aborted": "the session was aborted",
}
"""Every cause and what it means."""

ABORTING = frozenset({"conflict"})
"""Causes after which a session cannot be trusted to go on."""


class RefusedError(SessionError):
    """Something a role was sent and will not take.

    Args:
        cause: One of :data:`CAUSES`.
        what: What was refused.
        remedy: What the sender can do.
    """

    def __init__(self, cause: str, what: str, *, remedy: str = "") -> None:
        self.cause = cause
        super().__init__(what, why=CAUSES[cause], remedy=remedy)


class Counts:
    """Numbers for the status page: rejects by cause, bytes, pairs. Never a key or a name."""

    def __init__(self) -> None:
        self._lock, self._counted = Lock(), Counter[str]()

    def add(self, name: str, amount: int = 1) -> None:
        """Count something."""
        with self._lock:
            self._counted[name] += amount

    def refused(self, cause: str, amount: int = 1) -> None:
        """Count refusals."""
        self.add(f"refused {cause}", amount)

    def to_dict(self) -> dict[str, int]:
        """All of them."""
        with self._lock:
            return dict(sorted(self._counted.items()))
