"""The public names: what is promised to be there, and nothing by accident."""

import importlib
import subprocess
import sys
from pathlib import Path

import tacit

NAMES = {
    "Census", "DPA", "DPDGC", "GAP", "MLP", "Edge", "Graph", "KNeighbors", "Ledger", "Method",
    "Node", "Plan", "PrivGNN", "PublicFacts", "Statement", "TacitError", "graph", "load",
    "load_run", "save_run", "split",
}  # fmt: skip


def test_the_public_names() -> None:
    assert set(tacit.__all__) == NAMES == set(dir(tacit))
    assert all(getattr(tacit, name) is not None for name in NAMES)


def test_every_room_exports_what_it_lists() -> None:
    for room in ("graph", "privacy", "aggregate", "methods", "release", "testing"):
        module = importlib.import_module(f"tacit.{room}")
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_importing_is_quick() -> None:
    program = "import sys, tacit; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_package_is_typed() -> None:
    assert (Path(tacit.__file__).parent / "py.typed").is_file()


def test_no_room_without_a_name() -> None:
    banned = ("utils", "common", "helpers", "misc")
    root = Path(tacit.__file__).parent
    assert not [path for path in root.rglob("*") if path.stem.startswith(banned)]
