"""Generated faults, and every failure they have found, by name."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import local_session
import numpy as np
import pytest
from fault_simulator import ROLES, STEPS, generate, run

from tacit.errors import NoiseError, SessionError
from tacit.multiparty.disk import Disk, digest
from tacit.multiparty.party import Party
from tacit.multiparty.shuffler import Shuffler
from tacit.multiparty.state import Phase
from tacit.privacy.noise import NoiseSource

FOUND = Path(__file__).parent / "reproductions"
QUICK, LONG = 15, 600


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


def _no_memory_of_slots(monkeypatch):
    """A party that forgets at a restart what it has received."""
    monkeypatch.setattr(Party, "_enter", lambda self, number: _forget(self))


def _forget(party):
    if len(party._have) != len(party._slots):
        party._have = np.zeros(len(party._slots), bool)
        party._tags = np.zeros((len(party._slots), 16), np.uint8)


def _counts_repeats(monkeypatch):
    """A party that adds up whatever is on its disk, however often, and keeps what it has."""
    take = Party._take

    def careless(self, number, names, rows):
        self._have[:] = False
        return take(self, number, names, rows)

    monkeypatch.setattr(Party, "_take", careless)


def _fresh_noise_after_a_crash(monkeypatch):
    """A party that makes its share again when it is asked again."""

    def careless(self, number, agreed):
        words = self._noisy(number)
        self._source = NoiseSource.fresh()
        data = self.agreement.ring.to_bytes(words)
        self.store.disk.write(self.store.path(f"share-{number}.bin"), [data])
        state = self.state(number)
        state = replace(state, phase=Phase.AGGREGATED, agreed=agreed, share=digest(data))
        self.store.put({f"round {number}": state.to_dict()})
        return state.share

    monkeypatch.setattr(Party, "aggregate", careless)
    drive = local_session.drive_party

    def driven(party, report, held):
        number = party.store.get("last") or 1
        if party.state(number).phase is Phase.AGGREGATED:
            party.aggregate(number, party.state(number).agreed)
        return drive(party, report, held)

    monkeypatch.setattr(local_session, "drive_party", driven)


def _acknowledges_early(monkeypatch):
    """A shuffler that says yes before it has written anything."""

    def careless(self, number, uploads):
        if self.store.disk.death is None:
            store(self, number, uploads)

    store = Shuffler._store
    monkeypatch.setattr(Shuffler, "_store", careless)


def _writes_in_place(monkeypatch):
    """A disk that writes files under their own names, so that a crash leaves half of one."""

    def careless(self, path, chunks):
        try:
            with path.open("wb") as stream:
                for chunk in chunks:
                    stream.write(chunk)
            self.step("written", path)
        except OSError as error:
            raise SessionError("the disk is full") from error

    monkeypatch.setattr(Disk, "write", careless)


@pytest.mark.parametrize(
    "plant",
    [_no_memory_of_slots, _counts_repeats, _fresh_noise_after_a_crash, _acknowledges_early],
)  # fmt: skip
def test_planted_mistakes_are_found(plant, memory, monkeypatch):
    plant(monkeypatch)
    for seed in range(QUICK):
        try:
            run(generate(seed), memory / str(seed))
        except (AssertionError, SessionError):
            return
    raise AssertionError("the simulator did not notice")


def test_a_disk_that_writes_in_place_is_found(memory, monkeypatch):
    _writes_in_place(monkeypatch)
    turns = [("turn", name) for _ in range(13) for name in ROLES]
    crashes = [[("crash", "party-0", "written", str(skip), ""), *turns] for skip in range(8)]
    with pytest.raises(NoiseError, match="is not"):  # half a share was taken for a whole one
        list(map(run, crashes, (memory / str(skip) for skip in range(8))))


def test_a_crash_at_any_step_of_a_party_costs_nothing(memory):
    turns = [("turn", name) for _ in range(13) for name in ROLES]
    for step in STEPS:
        for skip in range(6):
            operations = [("crash", "party-0", step, str(skip), "lost"), *turns]
            assert run(operations, memory / f"{step}{skip}") == "done"


@pytest.mark.slow
def test_many_generated_faults(memory):
    ends = trial(range(1000, 1000 + LONG), memory)
    assert ends["done"] > LONG / 3


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.json")), ids=lambda path: path.stem)
def test_reproduction(path, memory):
    run([tuple(operation) for operation in json.loads(path.read_text())], memory / "s")
