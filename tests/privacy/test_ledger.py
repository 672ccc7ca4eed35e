import math
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import dp_accounting as dp
import pytest

from tacit.errors import BudgetError, LedgerError, PlanError
from tacit.privacy.accounting import epsilon_pld
from tacit.privacy.ledger import Ledger, default_path

DATA, OTHER = "a" * 64, "b" * 64
DELTA = 1e-5


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "deep" / "ledger.sqlite")


def charge(ledger, run, noise=10.0, *, data=DATA, unit="edge", event=None, note=""):
    event = event or dp.GaussianDpEvent(noise)
    return ledger.charge(fingerprint=data, run=run, unit=unit, event=event, delta=DELTA, note=note)


def test_an_entry_says_what_was_spent_by_whom_for_which_unit(ledger):
    entry = charge(ledger, "first", note="sweep")
    assert ledger.entries() == [entry] == Ledger(ledger.path).entries(DATA)
    assert (entry.run, entry.unit, entry.note) == ("first", "edge", "sweep")
    assert entry.epsilon == epsilon_pld(dp.GaussianDpEvent(10.0), DELTA)
    assert entry.at.endswith("+00:00")


def test_total_composes_the_stored_events(ledger):
    for k in range(4):
        charge(ledger, f"run{k}")
    total = ledger.total(DATA, "edge", DELTA)
    assert total.epsilon == pytest.approx(epsilon_pld(dp.GaussianDpEvent(5.0), DELTA), rel=1e-9)
    assert total.epsilon < total.epsilon_rdp < 4 * charge(ledger, "run0").epsilon
    assert ledger.total(OTHER, "edge", DELTA).epsilon == 0.0
    assert ledger.total(DATA, "node", DELTA).epsilon == 0.0


def test_a_resumed_run_is_charged_once(ledger):
    first = charge(ledger, "run")
    assert charge(ledger, "run") == first
    assert len(ledger.entries()) == 1


def test_a_run_name_stands_for_one_event(ledger):
    charge(ledger, "run", 10.0)
    with pytest.raises(LedgerError, match="something else"):
        charge(ledger, "run", 11.0)
    assert len(ledger.entries()) == 1


def test_the_same_run_on_other_data_or_for_another_unit_is_another_charge(ledger):
    charge(ledger, "run")
    charge(ledger, "run", data=OTHER)
    charge(ledger, "run", unit="node")
    assert len(ledger.entries()) == 3
    assert len(ledger.entries(DATA)) == 2


def test_a_charge_past_the_budget_is_refused_and_says_what_is_left(ledger):
    ledger.set_budget(DATA, "edge", 1.0, DELTA)
    charge(ledger, "one", 8.0)
    with pytest.raises(BudgetError) as refusal:
        charge(ledger, "two", 4.0)
    text = str(refusal.value)
    assert "unit edge" in text
    assert "is left" in text
    assert "Nothing was charged" in text
    left = float(text.partition("at epsilon ")[2].split()[0])
    assert 0 < left < 1.0
    assert [entry.run for entry in ledger.entries()] == ["one"]
    # What it says is left does fit, and a tenth more does not.
    from tacit.privacy.accounting import calibrate

    with pytest.raises(BudgetError):
        charge(ledger, "three", calibrate(dp.GaussianDpEvent, left * 1.1, DELTA))
    charge(ledger, "four", calibrate(dp.GaussianDpEvent, left, DELTA))
    assert ledger.total(DATA, "edge", DELTA).epsilon <= 1.0


def test_budgets_of_units_and_data_do_not_touch_each_other(ledger):
    ledger.set_budget(DATA, "edge", 0.0, DELTA)
    charge(ledger, "run", unit="node")
    charge(ledger, "run", data=OTHER)
    with pytest.raises(BudgetError):
        charge(ledger, "run")
    assert ledger.remaining(DATA, "edge") == 0.0
    assert math.isinf(ledger.remaining(DATA, "node"))


def test_the_latest_budget_for_a_delta_counts_and_every_delta_does(ledger):
    ledger.set_budget(DATA, "edge", 0.01, DELTA)
    ledger.set_budget(DATA, "edge", 5.0, DELTA)
    charge(ledger, "run")
    ledger.set_budget(DATA, "edge", 0.01, 1e-9)
    assert [budget.delta for budget in ledger.budgets(DATA)] == [DELTA, 1e-9]
    with pytest.raises(BudgetError, match="1e-09"):
        charge(ledger, "again")


def test_a_run_without_noise_is_recorded_and_ends_every_budget(ledger):
    assert math.isinf(charge(ledger, "open", event=dp.NonPrivateDpEvent()).epsilon)
    assert math.isinf(Ledger(ledger.path).entries()[0].epsilon)
    ledger.set_budget(DATA, "edge", 100.0, DELTA)
    with pytest.raises(BudgetError, match="infinity"):
        charge(ledger, "next", 1e3)


def test_a_plan_calibrated_to_the_whole_budget_fits_it(ledger):
    from tacit.privacy.accounting import calibrate

    ledger.set_budget(DATA, "edge", 4.0, DELTA)
    step = dp.PoissonSampledDpEvent(0.0128, dp.GaussianDpEvent(1.0))

    def event(noise):
        return dp.ComposedDpEvent([dp.SelfComposedDpEvent(step, 200), dp.GaussianDpEvent(noise)])

    charge(ledger, "exact", event=event(calibrate(event, 4.0, DELTA)))
    with pytest.raises(BudgetError):
        charge(ledger, "one more", 50.0)


def test_an_unknown_event_is_refused_and_nothing_written(ledger):
    with pytest.raises(PlanError):
        charge(ledger, "run", event=dp.ZCDpEvent(1.0))
    assert ledger.entries() == []


@pytest.mark.parametrize("name", ["", " ", "a\0b", None])
def test_a_charge_needs_names(ledger, name):
    with pytest.raises(LedgerError):
        charge(ledger, name)
    with pytest.raises(LedgerError):
        charge(ledger, "run", data=name)
    with pytest.raises(LedgerError):
        charge(ledger, "run", unit=name)


@pytest.mark.parametrize(("epsilon", "delta"), [(-1, 0), (math.inf, 0), (math.nan, 0), (1, 1)])
def test_a_budget_is_a_number(ledger, epsilon, delta):
    with pytest.raises(LedgerError):
        ledger.set_budget(DATA, "edge", epsilon, delta)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET epsilon = 0",
        "DELETE FROM entries",
        "INSERT OR REPLACE INTO entries SELECT * FROM entries",
        "INSERT OR REPLACE INTO entries SELECT NULL, run, fingerprint, unit, 0, 0, '', '', '' "
        "FROM entries",
        "UPDATE budgets SET epsilon = 99",
        "DELETE FROM budgets",
        "INSERT OR REPLACE INTO budgets SELECT * FROM budgets",
    ],
)
def test_entries_and_budgets_are_only_ever_added(ledger, statement):
    ledger.set_budget(DATA, "edge", 1.0, DELTA)
    entry = charge(ledger, "run")
    connection = sqlite3.connect(ledger.path, isolation_level=None)
    with pytest.raises(sqlite3.Error, match="append-only"):
        connection.execute(statement)
    connection.close()
    assert ledger.entries() == [entry]
    assert len(ledger.budgets()) == 1


def test_the_file_is_durable_and_marked(ledger):
    with ledger._connection() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_where_the_ledger_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("TACIT_LEDGER", raising=False)
    assert default_path() == tmp_path / "data" / "tacit" / "ledger.sqlite"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_path() == Path.home() / ".local/share/tacit/ledger.sqlite"
    monkeypatch.setenv("TACIT_LEDGER", str(tmp_path / "mine"))
    assert Ledger().path == tmp_path / "mine"
    assert Ledger(tmp_path / "given").path == tmp_path / "given"


def another_programs_database(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a)")
    connection.close()


def a_later_version(path):
    Ledger(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()


def a_truncated_ledger(path):
    ledger = Ledger(path)
    for k in range(30):
        charge(ledger, f"run{k}", note="n" * 500)
    path.write_bytes(path.read_bytes()[: 4096 + 100])


def read_only(path):
    Ledger(path)
    path.chmod(0o444)


BROKEN = {
    "text": lambda path: path.write_text("epsilon,delta\n" * 400),
    "another database": another_programs_database,
    "later version": a_later_version,
    "truncated": a_truncated_ledger,
    "read-only": read_only,
    "directory": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_not_a_usable_ledger_is_refused_and_left_alone(tmp_path, make):
    path = tmp_path / "ledger.sqlite"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(LedgerError):
        charge(Ledger(path), "run")
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_an_empty_file_becomes_a_ledger(tmp_path):
    """As left by a process that died while it created one."""
    (tmp_path / "ledger").touch()
    assert Ledger(tmp_path / "ledger").entries() == []


def test_a_failed_charge_leaves_the_lock_free(ledger, monkeypatch):
    with pytest.raises(KeyboardInterrupt), ledger._transaction():
        raise KeyboardInterrupt
    charge(ledger, "run")


def _charge_many(path, worker, count, queue):
    ledger, accepted = Ledger(path), 0
    for k in range(count):
        try:
            charge(ledger, f"{worker}-{k}", 20.0)
        except BudgetError:
            continue
        accepted += 1
    queue.put(accepted)


def _run_workers(path, count, workers=8):
    # A fork server has no threads of its own, whatever other tests have started here.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dp_accounting", "tacit.privacy.accounting"])
    queue = context.SimpleQueue()
    started = [
        context.Process(target=_charge_many, args=(path, k, count, queue)) for k in range(workers)
    ]
    for process in started:
        process.start()
    accepted = sum(queue.get() for _ in started)
    for process in started:
        process.join()
        assert process.exitcode == 0
    return accepted


def test_eight_processes_lose_no_charge(tmp_path):
    path = tmp_path / "ledger.sqlite"  # Created by the workers, all at once.
    assert _run_workers(path, 25) == 200
    entries = Ledger(path).entries()
    assert len(entries) == 200
    assert len({entry.run for entry in entries}) == 200


def test_eight_processes_never_exceed_the_budget(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_budget(DATA, "edge", 1.0, DELTA)
    accepted = _run_workers(ledger.path, 4)
    fits = max(
        n for n in range(33) if epsilon_pld(dp.GaussianDpEvent(20 / max(n, 1) ** 0.5), DELTA) <= 1.0
    )
    assert accepted == len(ledger.entries()) == fits
    assert ledger.total(DATA, "edge", DELTA).epsilon <= 1.0


CHARGER = """
import sys
import dp_accounting as dp
from tacit.privacy.ledger import Ledger
ledger = Ledger(sys.argv[1])
print("ready", flush=True)
for k in range(10_000):
    ledger.charge(fingerprint="f", run=f"{sys.argv[2]}-{k}", unit="edge",
                  event=dp.GaussianDpEvent(1000.0), delta=1e-5)
    print(f"{sys.argv[2]}-{k}", flush=True)
"""


def test_kill_9_in_the_middle_loses_no_acknowledged_charge(tmp_path):
    path, rng, acknowledged = tmp_path / "ledger.sqlite", random.Random(5), set()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    # Started together, killed at different moments, the later ones in the midst of many charges.
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CHARGER, str(path), f"p{k}"],
            stdout=subprocess.PIPE, text=True, env=environment,
        )
        for k in range(3)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        time.sleep(rng.uniform(0.02, 0.4))
        process.send_signal(signal.SIGKILL)
        heard, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL
        # The last line may have been cut short; every whole line is an acknowledged charge.
        acknowledged |= set(heard.splitlines() if heard.endswith("\n") else heard.splitlines()[:-1])
        ledger = Ledger(path)
        stored = [entry.run for entry in ledger.entries()]
        assert acknowledged <= set(stored)
        assert len(stored) == len(set(stored))
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
    assert len(acknowledged) > 20
    # The first charge of a killed run may be asked for again and is not paid twice.
    count = len(ledger.entries())
    first = ledger.entries()[0]
    again = ledger.charge(
        fingerprint="f", run=first.run, unit="edge", event=dp.GaussianDpEvent(1000.0), delta=DELTA
    )
    assert again == first
    assert len(ledger.entries()) == count
