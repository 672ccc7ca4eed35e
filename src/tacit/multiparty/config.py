"""What a role's TOML file says."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tacit.errors import SessionError
from tacit.multiparty.certificates import ROLES


@dataclass(frozen=True)
class Charging:
    """Where the coordinator charges what a session costs; as the ledger's own arguments.

    Attributes:
        ledger: Path of the ledger.
        fingerprint: Of the data.
        unit: Name of the unit of privacy.
        delta: The session's delta.
    """

    ledger: str
    fingerprint: str
    unit: str
    delta: float


@dataclass(frozen=True)
class RoleConfig:
    """One role's configuration.

    Attributes:
        role: One of ``registry``, ``coordinator``, ``shuffler``, ``party``, ``server``, ``user``.
        folder: Where it keeps its state; relative to the file.
        authority: PEM file of the session's authority, which was handed over in person.
        registry: Address of the registry.
        token: What it enrols with.
        number: A party's number, or the first user an agent acts for.
        last: The last user an agent acts for.
        listen: Where it listens; users' agents do not.
        coordinator: Address of the coordinator.
        shuffler: Address of the shuffler.
        server: Address of the server.
        parties: Addresses of the parties, in order.
        agreement: The session, for the registry and the coordinator, which begin it.
        authority_key: PEM file of the authority's key, for the registry alone.
        records: The users' records, for an agent: an npz file.
        connections: ``one`` certificate and connection for all users of an agent, or ``each``.
        charging: For the coordinator; without it nothing is charged.
    """

    role: str
    folder: Path
    authority: Path
    registry: str
    token: str = ""
    number: int = 0
    last: int = 0
    listen: str = ""
    coordinator: str = ""
    shuffler: str = ""
    server: str = ""
    parties: tuple[str, ...] = ()
    agreement: Path | None = None
    authority_key: Path | None = None
    records: Path | None = None
    connections: str = "one"
    charging: Charging | None = None

    @classmethod
    def load(cls, path: Path) -> RoleConfig:
        """Read a role's file.

        Raises:
            SessionError: It cannot be read, or says something that no role understands.
        """
        try:
            said = tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise SessionError(f"{path} cannot be read", why=str(error)) from error
        return cls.parse(said, path.parent)

    @classmethod
    def parse(cls, said: dict[str, Any], base: Path) -> RoleConfig:
        """The configuration in a table; paths are relative to ``base``."""
        known = {field.name: field for field in fields(cls)}
        strange = sorted(set(said) - set(known))
        if strange:
            raise SessionError(
                f"no role has the setting {strange[0]!r}",
                remedy=f"use {', '.join(sorted(known))}",
            )
        found: dict[str, Any] = dict(said)
        for name in ("folder", "authority", "agreement", "authority_key", "records"):
            if name in found:
                found[name] = base / str(found[name])
        try:
            if "parties" in found:
                found["parties"] = tuple(found["parties"])
            if "charging" in found:
                found["charging"] = Charging(**found["charging"])
            config = cls(**found)
        except TypeError as error:
            raise SessionError("a role's file is incomplete", why=str(error)) from error
        if config.role not in ROLES:
            raise SessionError(
                f"{config.role!r} is no role", remedy=f"use one of {', '.join(ROLES)}"
            )
        if config.connections not in ("one", "each"):
            raise SessionError("connections are 'one' for all users or one for 'each'")
        return config


def to_toml(said: dict[str, Any]) -> str:
    """A flat table with strings, numbers and lists, and tables one level down."""
    lines = [f"{name} = {_value(v)}" for name, v in said.items() if not isinstance(v, dict)]
    for name, table in said.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_value(v)}" for key, v in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
