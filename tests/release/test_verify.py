import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from safetensors.numpy import load, save

from tacit.errors import ReleaseError
from tacit.methods import Method
from tacit.release import inspect_bundle, load_bundle, release
from tacit.release.bundle import described, manifest_bytes

FILES = ("CARD.md", "manifest.json", "model.safetensors")


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and make every hash right again: an attacker can do that."""
    data = json.loads((folder / "manifest.json").read_text())
    change(data)
    for name in ("model.safetensors", "CARD.md"):
        if (folder / name).is_file() and isinstance(data.get("files"), dict):
            data["files"][name] = described((folder / name).read_bytes())
    (folder / "manifest.json").write_bytes(manifest_bytes(data))


def edit_arrays(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    arrays = load((folder / "model.safetensors").read_bytes())
    change(arrays)
    (folder / "model.safetensors").write_bytes(save(arrays))
    edit(folder, lambda data: None)


def put(data: dict[str, Any], path: str, value: Any) -> None:
    *keys, last = path.split(".")
    for key in keys:
        data = data[int(key)] if isinstance(data, list) else data[key]
    data[last] = value


def test_a_whole_bundle_is_explained(edge_bundle: Path, edge_model: Method) -> None:
    info = inspect_bundle(edge_bundle)
    assert info.statement == edge_model.statement
    assert info.arrays["posteriors"] == (150, 4)
    assert set(info.files) == set(FILES)
    told = json.loads(json.dumps(info.to_dict(), allow_nan=False))
    assert told["statement"]["unit"] == "edge"
    assert told["seal"] == info.seal
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(info.panel())
    text = console.export_text()
    assert info.seal[:40] in text
    assert "Features and labels are not protected" in text
    console.file.close()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "grow", "empty", "remove", "flip"])
def test_damage_is_seen(edge_bundle: Path, name: str, damage: str) -> None:
    path = edge_bundle / name
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    new = {"cut": content[:-7], "grow": content + b"x", "empty": b"", "flip": flipped}
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(new[damage])
    with pytest.raises(ReleaseError):
        load_bundle(edge_bundle)


@given(
    where=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255), which=st.sampled_from(FILES)
)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_flipped_byte_passes(edge_bundle: Path, where: float, mask: int, which: str) -> None:
    path = edge_bundle / which
    content = path.read_bytes()
    spot = int(where * len(content))
    path.write_bytes(content[:spot] + bytes([content[spot] ^ mask]) + content[spot + 1 :])
    try:
        before = json.loads(content) if which == "manifest.json" else None
        after = json.loads(path.read_bytes()) if before else None
    except ValueError:
        after = None
    try:
        if before is not None and before == after:
            inspect_bundle(edge_bundle)  # Only white space changed; the seal has.
        else:
            with pytest.raises(ReleaseError):
                inspect_bundle(edge_bundle)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("statement.epsilon", 0.1),
        ("statement.delta", 1e-9),
        ("statement.unit", "node"),
        ("statement.events", ["nothing released"]),
        ("statement.unit_words", "Everyone is protected."),
        ("statement.theorems", []),
        ("statement.releasable", False),
        ("statement.private_noise", False),
        ("statement.accounting", "paper"),
        ("statement.extra", "raw data"),
        ("plan.epsilon", "inf"),
        ("plan.stages.0.noise_multiplier", 100.0),
        ("plan.stages.0.rounds", 10**30),
        ("plan.stages.0.rounds", "two"),
        ("plan.charged.0.noise_multiplier", 0.0),
        ("plan.unit.name", "../../etc"),
        ("plan.unit.relation", "replace"),
        ("plan.method", "mlp"),
        ("plan.method", "__import__"),
        ("plan.settings.hidden", 10**9),
        ("plan.settings.hidden", -1),
        ("plan.settings.hidden", 63),
        ("plan.settings.encoder_layers", 10**6),
        ("plan.stages.0.noise_std", 0.1),
        ("plan.epsilon", 8.0),
        ("plan.facts.nodes", 10**12),
        ("plan.facts.classes", 3),
        ("plan.facts.features", 10),
        ("plan.note", "x"),
        ("method", "mlp"),
        ("classes", ["a"]),
        ("classes", [1, 2, 3, 4]),
        ("public_posteriors", False),
        ("public_posteriors", 1),
        ("format", "pickle"),
        ("version", 2),
        ("version", True),
        ("metrics", {"test_accuracy": 0.9}),
        ("files", []),
        ("plan", []),
        ("statement", None),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_a_forged_manifest_with_right_hashes_is_refused(
    edge_bundle: Path, path: str, value: Any
) -> None:
    edit(edge_bundle, lambda data: put(data, path, value))
    with pytest.raises(ReleaseError):
        load_bundle(edge_bundle)


def test_a_card_that_says_more_is_refused(edge_bundle: Path) -> None:
    card = edge_bundle / "CARD.md"
    card.write_text(card.read_text().replace("50 %", "50 % (fully safe)"))
    edit(edge_bundle, lambda data: None)
    with pytest.raises(ReleaseError, match="card does not say"):
        inspect_bundle(edge_bundle)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.update(metrics=np.ones(3, np.float32)),
        lambda arrays: arrays.update({"released/hop.1": np.ones((2, 4), np.float32)}),
        lambda arrays: arrays.update(posteriors=np.ones((150, 5), np.float32)),
        lambda arrays: arrays.update({"weights/scale": np.full(1, np.nan, np.float32)}),
        lambda arrays: arrays.update({"weights/x": np.ones(2, np.float16)}),
        lambda arrays: arrays.pop("posteriors"),
        lambda arrays: arrays.pop("weights/votes"),
        lambda arrays: arrays.pop("released/hop.1"),
        lambda arrays: arrays.pop("weights/encoder.0.stack.0.weight"),
        lambda arrays: arrays.clear(),
        lambda arrays: arrays.update({"weights/votes": np.array([99])}),
    ],
)
def test_other_arrays_are_refused(
    edge_bundle: Path, change: Callable[[dict[str, np.ndarray]], None]
) -> None:
    edit_arrays(edge_bundle, change)
    with pytest.raises(ReleaseError):
        load_bundle(edge_bundle)


def header(entries: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: object, span: object, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": span}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        header({}, length=2**63),
        header({}, length=2**20 + 1),
        header({}),
        header([]),
        header(b"{" * 5000),
        header(b"[" * 100_000),
        header(b'{"weights/a": 1, "weights/a": 2}'),
        header({"__metadata__": {"note": "private"}, "weights/a": entry([1], [0, 4])}, b"1234"),
        header({"weights/a": entry([2**40, 2**40], [0, 4])}, b"1234"),
        header({"weights/a": entry([-1], [0, 4])}, b"1234"),
        header({"weights/a": entry([1.0], [0, 4])}, b"1234"),
        header({"weights/a": entry([True], [0, 4])}, b"1234"),
        header({"weights/a": entry([1], [4, 8])}, b"12345678"),
        header({"weights/a": entry([1], [0, 4])}, b"1234hidden"),
        header({"weights/a": entry([1], [0, 4]), "weights/b": entry([1], [0, 4])}, b"1234"),
        header({"weights/a": entry([1] * 100, [0, 4])}, b"1234"),
        header({"weights/a": entry([1], [0, 4], "PICKLE")}, b"1234"),
        header({"weights/a": entry("1", [0, 4])}, b"1234"),
        b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    ],
    ids=lambda content: repr(content[:24]),
)
def test_absurd_headers_are_refused(edge_bundle: Path, content: bytes) -> None:
    (edge_bundle / "model.safetensors").write_bytes(content)
    edit(edge_bundle, lambda data: None)
    with pytest.raises(ReleaseError):
        load_bundle(edge_bundle)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"{", b"[" * 100_000, b'{"format": NaN}', b"\xff\xfe", b'{"a":1,"a":2}'],
)
def test_hostile_manifests_are_refused(edge_bundle: Path, content: bytes) -> None:
    (edge_bundle / "manifest.json").write_bytes(content)
    with pytest.raises(ReleaseError):
        inspect_bundle(edge_bundle)


def test_extra_files_links_and_pipes_are_refused(edge_bundle: Path, tmp_path: Path) -> None:
    extra = edge_bundle / "curves.csv"
    extra.write_text("1")
    with pytest.raises(ReleaseError, match="nothing else"):
        inspect_bundle(edge_bundle)
    extra.unlink()
    card = edge_bundle / "CARD.md"
    elsewhere = tmp_path / "elsewhere.md"
    card.rename(elsewhere)
    card.symlink_to(elsewhere)
    with pytest.raises(ReleaseError):
        inspect_bundle(edge_bundle)
    card.unlink()
    card.mkdir()
    with pytest.raises(ReleaseError):
        inspect_bundle(edge_bundle)
    card.rmdir()
    os.mkfifo(card)
    with pytest.raises(ReleaseError, match="not a plain file"):
        inspect_bundle(edge_bundle)


def test_a_manifest_beyond_its_size_is_not_read(edge_bundle: Path) -> None:
    with (edge_bundle / "manifest.json").open("r+b") as file:
        file.truncate(1 << 34)
    with pytest.raises(ReleaseError, match="larger than"):
        inspect_bundle(edge_bundle)


def test_no_bundle_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="no bundle"):
        inspect_bundle(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"PK\x05\x06")
    with pytest.raises(ReleaseError):
        inspect_bundle(tmp_path / "file")


def rewritten(source: Path, target: Path, **changes: Any) -> Path:
    method = changes.get("method", zipfile.ZIP_STORED)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for item in old.infolist():
            entry = zipfile.ZipInfo(changes.get("names", {}).get(item.filename, item.filename))
            entry.compress_type = method
            entry.external_attr = changes.get("attr", 0)
            entry.comment = changes.get("comment", b"")
            new.writestr(entry, old.read(item))
        for name in changes.get("more", ()):
            new.writestr(name, b"x")
        new.comment = changes.get("whole", b"")
    return target


@pytest.mark.parametrize(
    "changes",
    [
        {"names": {"CARD.md": "../CARD.md"}},
        {"names": {"CARD.md": "/etc/CARD.md"}},
        {"names": {"CARD.md": "manifest.json"}},
        {"names": {"CARD.md": "card.md"}},
        {"more": ["data.pkl"]},
        {"more": ["CARD.md"]},
        {"attr": 0o120777 << 16},
        {"method": zipfile.ZIP_DEFLATED},
        {"comment": b"hidden"},
        {"whole": b"hidden"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_archives_are_refused(
    edge_model: Method, tmp_path: Path, changes: dict[str, Any]
) -> None:
    whole = release(edge_model, tmp_path / "whole.zip")
    inspect_bundle(rewritten(whole, tmp_path / "same.zip"))
    with pytest.raises(ReleaseError):
        inspect_bundle(rewritten(whole, tmp_path / "odd.zip", **changes))
    cut = tmp_path / "cut.zip"
    cut.write_bytes(whole.read_bytes()[:-30])
    with pytest.raises(ReleaseError):
        inspect_bundle(cut)


def test_node_all_bundles_may_not_hold_rows(edge_bundle: Path) -> None:
    # Only the manifest tells the unit: a bundle that claims node-all and holds sums is refused.
    def claim(data: dict[str, Any]) -> None:
        data["plan"]["unit"] = {
            "name": "node-all", "relation": "add-remove", "links": "all", "max_degree": 9,
        }  # fmt: skip

    edit(edge_bundle, claim)
    with pytest.raises(ReleaseError):
        inspect_bundle(edge_bundle)


def test_a_smaller_sensitivity_than_proved_is_refused(edge_bundle: Path) -> None:
    # The whole forgery: multiplier, events and epsilon agree with each other, the noise does not.
    from tacit.methods.run import plan_from_dict
    from tacit.privacy.accounting import cost
    from tacit.privacy.events import describe
    from tacit.privacy.statement import Statement
    from tacit.release.card import card

    def forge(data: dict[str, Any]) -> None:
        for stages in (data["plan"]["stages"], data["plan"]["charged"]):
            stages[0]["noise_multiplier"] *= 2**0.5
        plan = plan_from_dict(data["plan"])
        paid = cost(plan.event, plan.delta)
        line = describe(plan.stages[0].event)
        data["plan"]["stages"][0]["event"] = line
        data["plan"]["cost"].update(epsilon=paid.epsilon, epsilon_rdp=paid.epsilon_rdp)
        data["statement"].update(
            epsilon=paid.epsilon, epsilon_rdp=paid.epsilon_rdp, events=[f"aggregation: {line}"]
        )
        told = {k: v for k, v in data["statement"].items() if k != "membership_success"}
        statement = Statement.from_dict(told)
        data["statement"] = statement.to_dict()
        plan = plan_from_dict(data["plan"])
        text = card(plan, statement, data["classes"], public_posteriors=True)
        (edge_bundle / "CARD.md").write_text(text)

    edit(edge_bundle, forge)
    with pytest.raises(ReleaseError, match="not one that its method makes"):
        inspect_bundle(edge_bundle)
