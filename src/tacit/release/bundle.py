"""The bundle: what a statement allows to leave, and nothing else.

Three files, in a folder or a stored zip archive: ``model.safetensors`` (arrays),
``manifest.json`` (plan, statement, hashes) and ``CARD.md`` (the statement for people). What goes in
is listed here; everything else a run left behind stays in its folder.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.errors import ReleaseError
from tacit.privacy.plan import Plan
from tacit.privacy.statement import Statement
from tacit.release.card import card, rows_are_own

if TYPE_CHECKING:
    from tacit.methods.base import Fitted, Method, Outcome

FORMAT = "tacit-bundle"
VERSION = 1
MODEL_FILE = "model.safetensors"
MANIFEST_FILE = "manifest.json"
CARD_FILE = "CARD.md"
FILES = (CARD_FILE, MANIFEST_FILE, MODEL_FILE)
KEYS = (
    "format",
    "version",
    "method",
    "plan",
    "statement",
    "classes",
    "public_posteriors",
    "files",
)
"""The whole manifest. A key that is not here does not leave."""

_EPOCH = (1980, 1, 1, 0, 0, 0)  # an archive does not say when it was written


def release(model: Method, path: str | Path) -> Path:
    """Write what a fitted model's statement allows to be public.

    Weights and the noisy sums leave; so do predictions, where they read nothing but what was
    released and public data. Metrics, training curves, notes, timing, seeds, run names, the
    graph's fingerprint, node identifiers, features and links stay. The number of nodes, the
    widths and the names of the classes are taken to be public.

    Args:
        model: A fitted method.
        path: A folder that does not exist or is empty, or a file name that ends in ``.zip``.

    Returns:
        The path.

    Raises:
        ReleaseError: The statement does not allow a release, or the path is taken.

    Formal guarantees:
        Everything written is a post-processing of what the statement's events released, of public
        facts, and (under ``Edge``) of features and labels, which that unit does not protect.
    """
    fitted, target = model.fitted, Path(path)
    refuse_private(fitted.statement)
    refuse_mismatch(fitted.plan, fitted.statement)
    files = _files(fitted)
    _refuse_taken(target)
    # Written beside the target and renamed, so that a torn write is no bundle.
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".zip":
            _write_zip(part, files)
        else:
            part.mkdir()
            for name, content in files.items():
                (part / name).write_bytes(content)
            if target.exists():
                target.rmdir()
        part.replace(target)
    except OSError as error:
        raise ReleaseError(
            f"the bundle cannot be written to {target}", why=str(error), remedy="name another path"
        ) from error
    finally:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)
    return target


def refuse_private(statement: Statement) -> None:
    """Refuse a statement under which nothing may leave.

    Raises:
        ReleaseError: With the reason and what to do.
    """
    if statement.releasable:
        return
    reasons = {
        "not private": (
            "its noise can be drawn again from the seed and subtracted",
            'fit again with noise="secure"; the ledger will charge that run',
        ),
        "paper accounting": (
            "its epsilon is the paper's claim, and not all of it is proved",
            'fit again with accounting="sound"',
        ),
    }
    why, remedy = reasons.get(
        statement.stamp,
        ("no noise was added, so nothing is promised to anyone", "fit with a finite epsilon"),
    )
    raise ReleaseError(
        f"a result stamped '{statement.stamp}' may not leave", why=why, remedy=remedy
    )


def refuse_mismatch(plan: Plan, statement: Statement) -> None:
    """Refuse a statement that is not the plan's: recomputes epsilon from the plan's noise.

    Raises:
        ReleaseError: The statement promises something else than the plan keeps.
    """
    from tacit.privacy.accounting import cost
    from tacit.privacy.events import describe

    paid = cost(plan.event, plan.delta)
    said = {
        "method": (statement.method, plan.method),
        "unit": (statement.unit, plan.unit.name),
        "relation": (statement.relation, plan.unit.relation),
        "unit_words": (statement.unit_words, plan.unit.words(plan.facts.directed)),
        "accounting": (statement.accounting, plan.accounting),
        "delta": (statement.delta, plan.delta),
        "events": (
            statement.events,
            tuple(f"{stage.name}: {describe(stage.event)}" for stage in plan.stages),
        ),
        "theorems": (
            statement.theorems,
            tuple(dict.fromkeys(stage.theorem for stage in plan.stages if stage.theorem)),
        ),
        "charge": (plan.charged, plan.stages),
    }
    wrong = [name for name, (mine, other) in said.items() if mine != other]
    for name, mine, other in (
        ("epsilon", statement.epsilon, paid.epsilon),
        ("epsilon_rdp", statement.epsilon_rdp, paid.epsilon_rdp),
        ("the plan's epsilon", plan.cost.epsilon, paid.epsilon),
        ("the plan's epsilon_rdp", plan.cost.epsilon_rdp, paid.epsilon_rdp),
    ):
        # A Fourier transform may round differently on another machine.
        if not abs(mine - other) <= 1e-6 * max(1.0, other):
            wrong.append(f"{name} ({mine:g} stated, {other:g} computed)")
    if wrong:
        raise ReleaseError(
            f"the statement is not the plan's: {', '.join(wrong)}",
            why="a bundle's promise has to follow from the noise that ran",
            remedy="fit again, or ask whoever made the bundle",
        )


def public_arrays(plan: Plan, outcome: Outcome) -> dict[str, np.ndarray]:
    """The arrays that may be shown to anyone, by name.

    Under ``Node(links="all")`` the row of a released sum belongs to its node alone, so the sums
    stay with the owner, who hands each node its own prediction. A method that learned for a public
    graph released nothing that speaks of one private node, so all of it may leave.
    """
    arrays = {f"weights/{name}": array for name, array in outcome.weights.items()}
    if not rows_are_own(plan):
        arrays |= {f"released/{name}": array for name, array in outcome.released.items()}
        if outcome.public_posteriors:
            arrays["posteriors"] = outcome.posteriors
    return arrays


def manifest_bytes(data: Mapping[str, Any]) -> bytes:
    """A manifest as the bytes that are written."""
    return (json.dumps(data, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def described(content: bytes) -> dict[str, Any]:
    """Size and hash of a file."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _files(fitted: Fitted) -> dict[str, bytes]:
    from safetensors.numpy import save

    arrays = public_arrays(fitted.plan, fitted.outcome)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ReleaseError(
                f"{name} holds numbers that are not finite", remedy="fit again; nothing was written"
            )
    shared = "posteriors" in arrays
    model = save({name: np.asarray(arrays[name], order="C") for name in sorted(arrays)})
    text = card(fitted.plan, fitted.statement, fitted.classes, public_posteriors=shared).encode()
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "method": fitted.plan.method,
        "plan": fitted.plan.to_dict(),
        "statement": fitted.statement.to_dict(),
        "classes": None if fitted.classes is None else list(fitted.classes),
        "public_posteriors": shared,
        "files": {MODEL_FILE: described(model), CARD_FILE: described(text)},
    }
    return {MODEL_FILE: model, MANIFEST_FILE: manifest_bytes(manifest), CARD_FILE: text}


def _refuse_taken(target: Path) -> None:
    empty = target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    if (target.suffix == ".zip" or not empty) and (target.exists() or target.is_symlink()):
        raise ReleaseError(
            f"{target} exists already",
            why="files that lie there could leave with the bundle",
            remedy="name a new path, or remove it first",
        )


def _write_zip(path: Path, files: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED) as archive:
        for name in FILES:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name])
