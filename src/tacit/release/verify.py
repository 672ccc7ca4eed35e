"""Reading a bundle that anyone may have written: checked before it is believed.

Nothing here executes what it reads. Sizes are bounded before memory is taken, names before files
are opened, and the promise is computed again from the plan.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tacit.errors import ReleaseError, TacitError
from tacit.privacy.plan import Plan, Stage
from tacit.privacy.statement import Statement
from tacit.release.archive import read_files
from tacit.release.bundle import (
    CARD_FILE,
    FORMAT,
    KEYS,
    MANIFEST_FILE,
    MODEL_FILE,
    VERSION,
    described,
    refuse_mismatch,
    refuse_private,
)
from tacit.release.card import (
    answered_nodes,
    audience,
    card,
    for_public,
    left_out,
    rows_are_own,
)

if TYPE_CHECKING:
    from rich.panel import Panel

_LONGEST_HEADER = 1 << 20
_DTYPES = {"F32": 4, "F64": 8, "I64": 8}
_FREE_ENTRIES = 1 << 26  # hidden entries that a network may always have: 256 MB


@dataclass(frozen=True)
class BundleInfo:
    """A bundle that was verified, explained.

    Attributes:
        path: Where it lies.
        plan: The plan that ran.
        statement: What it promises; epsilon was computed again from the plan.
        classes: The owner's names of the classes, if there are any.
        arrays: Shape of every array it holds.
        files: Size and SHA-256 of every file.
        seal: SHA-256 of the manifest. Whoever publishes a bundle publishes this beside it.
        public_posteriors: Whether it holds predictions that may be shown to anyone.
    """

    path: Path
    plan: Plan
    statement: Statement
    classes: tuple[str, ...] | None
    arrays: dict[str, tuple[int, ...]]
    files: dict[str, dict[str, Any]]
    seal: str
    public_posteriors: bool

    @property
    def audience(self) -> tuple[str, ...]:
        """Who may be shown what, in sentences."""
        return audience(self.plan, public_posteriors=self.public_posteriors)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "verified": True,
            "path": str(self.path),
            "method": self.plan.method,
            "seal": self.seal,
            "statement": self.statement.to_dict(),
            "plan": self.plan.to_dict(),
            "classes": None if self.classes is None else list(self.classes),
            "arrays": {name: list(shape) for name, shape in self.arrays.items()},
            "files": self.files,
            "public_posteriors": self.public_posteriors,
            "audience": list(self.audience),
            "left_out": list(left_out(self.plan, public_posteriors=self.public_posteriors)),
        }

    def panel(self) -> Panel:
        """The explanation for a terminal."""
        from rich import box
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        facts = Table(box=None, show_header=False, padding=(0, 1, 1, 0), expand=True)
        facts.add_column(style="bold", width=14)
        facts.add_column(ratio=1, overflow="fold")
        held = ", ".join(f"{name} {shape}" for name, shape in sorted(self._summary().items()))
        rows = (
            ("Verified", "hashes, format, arrays, card; epsilon computed again from the plan"),
            ("Seal", f"{self.seal} (compare with the one the owner published)"),
            ("Holds", held),
            ("For whom", "\n".join(self.audience)),
            (
                "Left out",
                "\n".join(left_out(self.plan, public_posteriors=self.public_posteriors)),
            ),
        )
        for heading, text in rows:
            facts.add_row(Text(heading), Text(text))
        return Panel(
            Group(facts, self.statement.panel()),
            title=Text(f"Bundle: {self.path.name}"),
            box=box.ROUNDED,
            padding=(1, 2, 0, 2),
        )

    def _summary(self) -> dict[str, str]:
        """Arrays in few words: the weights as one."""
        weights = sum(math.prod(s) for n, s in self.arrays.items() if n.startswith("weights/"))
        rest = {
            n: " x ".join(f"{k:,}" for k in s)
            for n, s in self.arrays.items()
            if not n.startswith("weights/")
        }
        return {"weights": f"{weights:,} numbers", **rest}


def inspect_bundle(path: str | Path) -> BundleInfo:
    """Verify a bundle and say what it is.

    Args:
        path: A bundle's folder or zip archive.

    Returns:
        What it holds and promises.

    Raises:
        ReleaseError: A file is missing, changed, too much or not what it claims to be, or the
            statement does not follow from the plan.
    """
    return verified(path)[0]


def verified(path: str | Path) -> tuple[BundleInfo, dict[str, np.ndarray]]:
    """What :func:`inspect_bundle` finds, and the arrays themselves."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    where = Path(path)
    files = read_files(where)
    manifest = _manifest(files[MANIFEST_FILE])
    for name in (MODEL_FILE, CARD_FILE):
        if manifest["files"][name] != described(files[name]):
            _refuse(f"{name} is not the file the manifest describes", "it was changed or cut short")
    plan, statement = _promise(manifest)
    classes = _classes(manifest["classes"], plan)
    posteriors = manifest["public_posteriors"]
    if type(posteriors) is not bool:
        _refuse("the manifest does not say whether predictions are public")
    expected = card(plan, statement, classes, public_posteriors=posteriors)
    if files[CARD_FILE] != expected.encode():
        _refuse(
            "the card does not say what the statement says",
            "it was edited, or written by another version of Tacit",
        )
    shapes = _header(files[MODEL_FILE])
    _check_arrays(shapes, plan, posteriors)
    try:
        arrays = load(files[MODEL_FILE])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ReleaseError(f"{MODEL_FILE} is damaged", why=str(error)) from error
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            _refuse(f"{name} holds numbers that are not finite")
    info = BundleInfo(
        path=where,
        plan=plan,
        statement=statement,
        classes=classes,
        arrays=shapes,
        files=manifest["files"] | {MANIFEST_FILE: described(files[MANIFEST_FILE])},
        seal=hashlib.sha256(files[MANIFEST_FILE]).hexdigest(),
        public_posteriors=posteriors,
    )
    return info, arrays


def _refuse(what: str, why: str = "") -> NoReturn:
    raise ReleaseError(what, why=why, remedy="ask whoever gave you the bundle for a whole copy")


def _strict(text: bytes, what: str) -> Any:
    """JSON without duplicate keys, NaN or infinities."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in items}) != len(items):
            raise ValueError("a key appears twice")
        return dict(items)

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number")

    try:
        return json.loads(text.decode(), object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"{what} is not readable", why=str(error)[:200]) from error


def _manifest(content: bytes) -> dict[str, Any]:
    data = _strict(content, MANIFEST_FILE)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        _refuse("this is not a Tacit bundle", f"its manifest does not say format {FORMAT!r}")
    if data.get("version") != VERSION or type(data["version"]) is not int:
        raise ReleaseError(
            f"the bundle has version {str(data.get('version'))[:20]}, not {VERSION}",
            remedy="open it with the version of Tacit that wrote it",
        )
    if set(data) != set(KEYS):
        odd = ", ".join(sorted(str(key)[:40] for key in set(data) ^ set(KEYS)))
        _refuse(f"the manifest has missing or unknown entries: {odd}")
    files = data["files"]
    if not isinstance(files, dict) or set(files) != {MODEL_FILE, CARD_FILE}:
        _refuse("the manifest lists other files than a bundle has")
    return data


def _promise(manifest: Mapping[str, Any]) -> tuple[Plan, Statement]:
    """Plan and statement, checked against each other."""
    from tacit.methods.run import plan_from_dict

    try:
        plan = plan_from_dict(manifest["plan"])
        statement = Statement.from_dict(manifest["statement"])
        if plan.to_dict() != manifest["plan"] or statement.to_dict() != manifest["statement"]:
            _refuse("plan or statement hold more, or something else, than they say")
        if manifest["method"] != plan.method:
            _refuse("the manifest names another method than the plan")
        refuse_private(statement)
        refuse_mismatch(plan, statement)
        _check_plan(plan)
    except ReleaseError:
        raise
    except (TacitError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise ReleaseError(
            "the bundle's plan or statement is not one", why=f"{type(error).__name__}: {error}"
        ) from error
    return plan, statement


def _check_plan(plan: Plan) -> None:
    """Plan again from the public facts: the noise has to be what the method would choose.

    A forger who raises a noise multiplier and leaves the noise as it was claims a smaller
    sensitivity than is proved; the method's own plan shows it.
    """
    from tacit.methods.run import rebuilt

    again = rebuilt(plan, seed=0, noise="secure").plan(plan.facts)

    def outline(stages: tuple[Stage, ...]) -> list[tuple[Any, ...]]:
        return [(s.name, s.rounds, s.sampling_rate, s.theorem) for s in stages]

    same = outline(plan.stages) == outline(again.stages) and plan.settings == again.settings
    for mine, other in zip(plan.stages, again.stages, strict=False):
        for a, b in (
            (mine.noise_multiplier, other.noise_multiplier),
            (mine.noise_std, other.noise_std),
        ):
            # Calibration stops within this of the target, and may stop elsewhere next time.
            same = same and math.isclose(a, b, rel_tol=1e-3)
        same = same and math.isclose(
            mine.noise_std * other.noise_multiplier,
            other.noise_std * mine.noise_multiplier,
            rel_tol=1e-9,
        )
    if not same or not plan.cost.epsilon <= plan.epsilon:
        _refuse(
            "the plan is not one that its method makes",
            "noise, sensitivity or settings differ from a plan for the same facts and budget",
        )


def _classes(found: Any, plan: Plan) -> tuple[str, ...] | None:
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        _refuse("the class names are not names")
    if len(found) != plan.facts.classes:
        _refuse(f"{len(found)} class names for {plan.facts.classes} classes")
    return tuple(found)


def _header(content: bytes) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays, from a safetensors header that adds up to the file."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(_LONGEST_HEADER, len(content) - 8):
        _refuse(f"{MODEL_FILE} has a header of {length} bytes in a file of {len(content)}")
    header = _strict(content[8 : 8 + length], f"the header of {MODEL_FILE}")
    if not isinstance(header, dict) or not header or "__metadata__" in header:
        _refuse(f"{MODEL_FILE} holds no arrays, or notes beside them")
    shapes: dict[str, tuple[int, ...]] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            _refuse(f"{MODEL_FILE} describes an array oddly: {name[:60]!r}")
        shape, span = entry["shape"], entry["data_offsets"]
        numbers = [*shape, *span] if isinstance(shape, list) and isinstance(span, list) else [-1]
        if entry["dtype"] not in _DTYPES or len(span) != 2 or len(shape) > 8:
            _refuse(f"{name[:60]!r} is of a type or shape that no bundle has")
        if not all(type(k) is int and 0 <= k <= len(content) for k in numbers):
            _refuse(f"{name[:60]!r} is of a shape that its file cannot hold")
        if span[1] - span[0] != math.prod(shape) * _DTYPES[entry["dtype"]]:
            _refuse(f"{name[:60]!r} has another size than its shape says")
        shapes[name] = tuple(shape)
        spans.append((span[0], span[1]))
    end = 0
    for start, stop in sorted(spans):
        if start != end:
            _refuse(f"{MODEL_FILE} has gaps or overlaps between its arrays")
        end = stop
    if end != len(content) - 8 - length:
        _refuse(f"{MODEL_FILE} is cut short, or something follows its arrays")
    return shapes


def _check_arrays(shapes: Mapping[str, tuple[int, ...]], plan: Plan, posteriors: bool) -> None:
    facts = plan.facts
    for name, shape in shapes.items():
        kind = name.split("/")[0]
        if name == "posteriors":
            fits = posteriors and shape == (answered_nodes(plan), facts.classes)
        elif kind == "released" and name != kind:
            # What was released for a public graph has the rows that its method gives it.
            fits = len(shape) == 2 and (for_public(plan) or shape[0] == facts.nodes)
        else:
            fits = kind == "weights" and name != kind
        if not fits or (kind != "weights" and rows_are_own(plan)):
            _refuse(f"the bundle holds {name[:60]!r} of shape {shape}, which its plan does not")
    if posteriors and "posteriors" not in shapes:
        _refuse("the predictions the manifest speaks of are missing")
    # A network is built from the settings: they may not ask for more than the weights fill.
    weights = sum(math.prod(s) for name, s in shapes.items() if name.startswith("weights/"))
    room = max(16 * weights, _FREE_ENTRIES)
    for name in ("hidden", "layers", "encoder_layers", "base_layers", "head_layers", "hops"):
        size = getattr(plan.settings, name, 1)
        limit = math.isqrt(room) if name == "hidden" else len(shapes)
        if type(size) is not int or not 1 <= size <= limit:
            _refuse(f"the plan's {name}={size!r} does not fit the weights")
