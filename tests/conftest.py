from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test may charge the ledger of whoever runs it."""
    path = tmp_path / "ledger.sqlite"
    monkeypatch.setenv("TACIT_LEDGER", str(path))
    return path
