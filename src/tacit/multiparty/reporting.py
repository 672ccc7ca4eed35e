"""Where a session stands, put together from what its roles wrote of themselves."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tacit.errors import SessionError
from tacit.multiparty.config import ROLES

STATUS = "status.json"


def read_status(folder: Path) -> dict[str, Any]:
    """A role's status file; empty if there is none."""
    try:
        return dict(json.loads((folder / STATUS).read_text()))
    except (OSError, ValueError):
        return {}


def overview(folder: Path) -> dict[str, Any]:
    """All roles of a session's folder.

    Returns:
        ``session`` (round, phase, done, why), ``bytes_uploaded``, ``pairs_per_second``,
        ``rejects`` by cause over all roles, and every role's own figures under ``roles``.

    Raises:
        SessionError: No role has written anything there.
    """
    found = {path.parent.name: read_status(path.parent) for path in folder.glob(f"*/{STATUS}")}
    roles = {
        name: {
            "session": said["session"],
            "trouble": said["trouble"],
            "seconds_ago": round(time.time() - said["at"], 1),
            "counts": said["counts"],
        }
        for name, said in sorted(found.items())
        if said and said["role"] in ROLES
    }
    if not roles:
        raise SessionError(f"no role has written its status in {folder}", remedy="is it running?")
    counts = [role["counts"] for role in roles.values()]
    rejects: dict[str, int] = {}
    for count in counts:
        for name, amount in count.items():
            if name.startswith("refused "):
                cause = name.removeprefix("refused ").removesuffix(" by parties")
                rejects[cause] = rejects.get(cause, 0) + int(amount)
    busy = sum(count.get("milliseconds sending", 0) for count in counts) / 1e3
    pairs = sum(count.get("pairs kept", 0) for count in counts)
    speaker = roles.get("coordinator") or next(iter(roles.values()))
    return {
        "session": speaker["session"],
        "bytes_uploaded": roles.get("shuffler", {}).get("counts", {}).get("bytes received", 0),
        "pairs": pairs,
        "pairs_per_second": round(pairs / busy, 1) if busy else 0.0,
        "rejects": rejects,
        "roles": roles,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The overview in words."""
    session = found["session"]
    state = f"round {session.get('round', '?')}: {session.get('phase', 'unknown')}"
    if session.get("done"):
        state = "done"
    if session.get("why"):
        state += f" ({session['why']})"
    rejects = ", ".join(f"{cause} {n:,}" for cause, n in found["rejects"].items()) or "none"
    said = [
        state,
        f"{found['bytes_uploaded'] / 1e6:,.1f} MB uploaded; {found['pairs']:,} pairs kept, "
        f"{found['pairs_per_second']:,.0f} a second; rejects: {rejects}",
    ]
    for name, role in found["roles"].items():
        trouble = f" trouble: {role['trouble']}" if role["trouble"] else ""
        said.append(f"  {name}: heard {role['seconds_ago']:g} s ago{trouble}")
    return said
