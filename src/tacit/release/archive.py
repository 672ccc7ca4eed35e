"""The three files of a bundle, from a folder or a zip archive that may be hostile."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

from tacit.errors import ReleaseError
from tacit.release.bundle import CARD_FILE, FILES, MANIFEST_FILE

_LONGEST = {MANIFEST_FILE: 4 << 20, CARD_FILE: 1 << 20}


def read_files(path: Path) -> dict[str, bytes]:
    """The content of every file of a bundle: exactly the three it has, none of them a link.

    Args:
        path: A folder or an archive.

    Raises:
        ReleaseError: There are other files, links, folders, or sizes that no bundle has.
    """
    try:
        if path.is_dir():
            return _from_folder(path)
        if path.is_file():
            return _from_zip(path)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        raise ReleaseError(
            f"{path.name} cannot be read as a bundle", why=f"{type(error).__name__}: {error}"
        ) from error
    raise ReleaseError(f"there is no bundle at {path}", remedy="check the path")


def _check_names(names: list[str]) -> None:
    if sorted(names) != sorted(FILES):
        odd = sorted(set(names) ^ set(FILES)) or sorted(names)
        raise ReleaseError(
            f"a bundle holds {', '.join(FILES)} and nothing else",
            why=f"missing, unknown or repeated here: {', '.join(repr(n[:60]) for n in odd[:5])}",
            remedy="ask for a whole copy",
        )


def _check_size(name: str, size: int) -> None:
    if size > _LONGEST.get(name, size):
        raise ReleaseError(f"{name} is larger than that of any bundle: {size:,} bytes")


def _from_folder(path: Path) -> dict[str, bytes]:
    names = [entry.name for entry in path.iterdir()]
    _check_names(names)
    files = {}
    for name in names:
        # Opened without following a link or waiting for a pipe, then checked.
        handle = os.open(path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise ReleaseError(f"{name} is not a plain file")
            _check_size(name, status.st_size)
            files[name] = file.read(status.st_size + 1)
    return files


def _from_zip(path: Path) -> dict[str, bytes]:
    length = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        _check_names([entry.filename for entry in entries])
        if archive.comment:
            raise ReleaseError("the archive carries a comment, which no bundle does")
        total = 0
        for entry in entries:
            # Stored entries cannot grow: the archive is as large as what it holds.
            kind = stat.S_IFMT(entry.external_attr >> 16)
            plain = entry.compress_type == zipfile.ZIP_STORED and kind in (0, stat.S_IFREG)
            if not plain or entry.flag_bits & 1 or entry.extra or entry.comment:
                raise ReleaseError(f"{entry.filename} is not a plain stored file")
            if entry.file_size != entry.compress_size or entry.file_size > length:
                raise ReleaseError(f"{entry.filename} claims another size than it has")
            _check_size(entry.filename, entry.file_size)
            total += entry.file_size
        if total > length:
            raise ReleaseError("the files of the archive overlap")
        return {entry.filename: archive.read(entry) for entry in entries}
