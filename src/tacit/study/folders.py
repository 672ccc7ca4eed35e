"""Folders that may be interrupted at any instant and taken up again by one process at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit.errors import PlanError

LOCK_FILE = ".lock"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that readers and crashes see all of it or nothing."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON, all of it or nothing."""
    write_whole(path, json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def append_line(path: Path, line: str) -> None:
    """Add one line by a single write and wait until it is on disk."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(handle, f"{line}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes; the system lets go when the process dies.

    Two processes that resumed the same run would draw noise twice under one charge, and two draws
    can be averaged.

    Raises:
        PlanError: Another process holds the folder.
    """
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PlanError(
                f"another process is working in {folder}",
                why="two of them would draw noise twice under one charge",
                remedy="wait for it, or name another folder",
            ) from error
        yield
