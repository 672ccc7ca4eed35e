"""Files that are on disk when a call returns, or not there at all.

Write beside, fsync, rename, fsync the folder: only then may anything be acknowledged. Every step
passes through :meth:`Disk.step`, where tests pull the plug.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from zlib import crc32

from tacit.errors import SessionError

PART = ".part"


class Disk:
    """The file system as this room uses it."""

    def step(self, name: str, path: Path) -> None:
        """Called after each step of writing. Does nothing; a test's disk may fail here."""

    def write(self, path: Path, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a file so that a crash leaves all of it or nothing; durable on return.

        Raises:
            SessionError: The disk is full or cannot be written; the file is then not there.
        """
        part = path.with_name(path.name + PART)
        try:
            with part.open("wb") as stream:
                for chunk in chunks:
                    stream.write(chunk)
                self.step("written", part)
                stream.flush()
                os.fsync(stream.fileno())
            self.step("synced", part)
            part.replace(path)
            self.step("renamed", path)
            self.sync_folder(path.parent)
            self.step("settled", path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise SessionError(
                f"{path.name} cannot be written",
                why=str(error),
                remedy="free the disk; nothing was acknowledged, so the sender will try again",
            ) from error

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def read(self, path: Path) -> bytes:
        """A whole file.

        Raises:
            SessionError: It cannot be read.
        """
        try:
            return path.read_bytes()
        except OSError as error:
            raise SessionError(f"{path.name} cannot be read", why=str(error)) from error

    def sweep(self, folder: Path) -> None:
        """Remove what a crash left half written: none of it was acknowledged."""
        for part in folder.glob(f"*{PART}"):
            part.unlink()


def digest(*chunks: bytes | memoryview) -> str:
    """SHA-256 of the chunks in a row."""
    found = sha256()
    for chunk in chunks:
        found.update(chunk)
    return found.hexdigest()


def checksum(data: bytes | memoryview) -> str:
    """CRC-32 of a file: against what disks do by themselves, not against forgers."""
    return f"{crc32(data):08x}"
