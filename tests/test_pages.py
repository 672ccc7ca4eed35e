"""Pages point at what exists: links between pages, and the code and tests that proofs name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path for folder in (".", "docs", "proofs", "papers/*") for path in ROOT.glob(f"{folder}/*.md")
)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
NAMED = re.compile(r"`((?:tests|proofs|docs|benchmarks|papers|src)/[\w./-]+\.\w+)`")
CODE = re.compile(r"`(tacit(?:\.\w+)+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    missing += [name for name in NAMED.findall(text) if not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_code_exists(page: Path) -> None:
    for name in CODE.findall(page.read_text()):
        parts = name.split(".")
        places = [ROOT / "src" / Path(*parts[:n]) for n in range(len(parts), 0, -1)]
        home = next(p for p in places if p.is_dir() or p.with_suffix(".py").is_file())
        rest = parts[len(home.relative_to(ROOT / "src").parts) :]
        source = home.with_suffix(".py") if not home.is_dir() else home / "__init__.py"
        assert all(re.search(rf"\b{word}\b", source.read_text()) for word in rest), name
