"""Generated faults, and every failure they have found, by name."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from fault_simulator import generate, run

FOUND = Path(__file__).parent / "reproductions"
QUICK, LONG = 60, 3000


@pytest.fixture
def memory():
    """A folder in memory where there is one: these tests fail disks by themselves."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


def trial(seeds, memory: Path) -> Counter[str]:
    """Runs sequences; one that fails is written down as a reproduction to be named and kept."""
    ends = Counter[str]()
    for seed in seeds:
        operations = generate(seed)
        try:
            ends[run(operations, memory / str(seed))] += 1
        except BaseException as error:
            failed = Path(tempfile.gettempdir()) / f"tacit-fault-{seed}.json"
            failed.write_text(json.dumps(operations))
            raise AssertionError(f"sequence {seed} fails, kept in {failed}: {error!r}") from error
        shutil.rmtree(memory / str(seed))
    return ends


def test_generated_faults_never_lose_or_double_anything(memory):
    ends = trial(range(QUICK), memory)
    assert ends["done"] > QUICK / 3


@pytest.mark.slow
def test_many_generated_faults(memory):
    ends = trial(range(1000, 1000 + LONG), memory)
    assert ends["done"] > LONG / 3


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.json")), ids=lambda path: path.stem)
def test_reproduction(path, memory):
    run([tuple(operation) for operation in json.loads(path.read_text())], memory / "s")
