"""Configurations of papers: what they say, and how they run."""

from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.errors import PlanError
from tacit.privacy import Ledger
from tacit.study.paper import CONFIG_FILE, Study, lines_of, read_study
from tacit.study.reproduce import reproduce

PAPERS = Path(__file__).parents[2] / "papers"
CONFIG = """
title = "A paper"
repeats = 2
seed = 0
split = "60/20/20"
delta = { edge = 1e-6, node = 1e-5 }
[data]
small = "made for this test"
absent = "nowhere"
[generated.blocks]
words = "block model"
kind = "csbm_phi"
vary = "phi"
values = [-0.5, 0.5]
nodes = 60
features = 6
[ways.tacit]
words = "ours"
accounting = "sound"
settings = { steps = 2, epochs = 2 }
[ways.paper]
words = "theirs"
accounting = "paper"
settings = { preset = "paper", steps = 2, epochs = 2 }
[experiments.table]
title = "Table"
ways = ["tacit", "paper"]
data = ["small", "absent"]
rows = [
  { label = "one hop", method = "gap", unit = "edge", epsilon = 1, settings = { hops = 1 } },
  { label = "no links", method = "mlp", unit = "edge", epsilon = 1, ways = ["tacit"] },
]
[experiments.arc]
title = "Arc"
ways = ["tacit"]
data = ["blocks"]
lines = ["gap", "mlp"]
epsilons = { edge = [1] }
[experiments.hops]
title = "Hops"
ways = ["tacit"]
data = ["small"]
setting = "hops"
values = [1, 2]
epsilons = { edge = [1, 4] }
[quick]
repeats = 1
only = ["table"]
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    path = tmp_path / CONFIG_FILE
    path.write_text(CONFIG)
    path.with_name("expected.json").write_text('{"table": {"small": {"one hop": {"paper": 71.5}}}}')
    return read_study(path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    graph = tacit.graph.synthetic.communities(80, mean_degree=6, features=5, classes=3, seed=1)
    np.savez(
        tmp_path / "small.npz",
        adj_data=np.ones(graph.arcs, np.float32),
        adj_indices=graph.indices,
        adj_indptr=graph.indptr,
        adj_shape=np.array([80, 80]),
        attr_matrix=graph.features,
        labels=graph.labels,
    )
    return tmp_path


CONFIGS = [
    path
    for path in sorted(PAPERS.glob("*/config.toml"))
    if 'kind = "attack"' not in path.read_text()
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.parent.name)
def test_every_paper_of_the_checkout_can_be_planned(path: Path) -> None:
    study = read_study(path)
    kept = [*study.data, *study.generated]
    for name in study.experiments:
        lines = lines_of(study, name, kept)
        assert lines, name
        for line in lines:
            assert line.recipe.model(0).name == line.recipe.method


def test_rows_have_settings_and_ways_of_their_own(study: Study) -> None:
    lines = lines_of(study, "table", ["small"])
    assert [(line.label, line.way) for line in lines] == [
        ("one hop", "tacit"),
        ("no links", "tacit"),
        ("one hop", "paper"),
    ]
    settings = [dict(line.recipe.settings) for line in lines]
    assert settings[0] == {"epochs": 2, "hops": 1, "steps": 2}
    assert settings[1] == {"epochs": 2, "steps": 2}
    assert lines[2].recipe.accounting == "paper"


def test_a_curve_has_a_label_and_settings_of_its_own() -> None:
    study = read_study(PAPERS / "privgnn" / "config.toml")
    lines = lines_of(study, "epsilons", list(study.data))
    chosen = {line.label: dict(line.recipe.settings).get("teacher") for line in lines}
    assert chosen == {"PrivGNN (one teacher's word)": None, "Votes": "votes", "Census": None}
    assert {line.x for line in lines if line.label == "Votes"} == {0.5, 1, 2, 4, 8}


def test_a_family_is_one_axis(study: Study) -> None:
    lines = lines_of(study, "arc", ["blocks"])
    assert {line.x for line in lines} == {-0.5, 0.5}
    assert {line.data for line in lines} == {"blocks phi=-0.5", "blocks phi=0.5"}
    graph = study.generate("blocks phi=0.5")
    same = tacit.graph.synthetic.csbm_phi(0.5, nodes=60, features=6)
    assert graph.nodes == 60
    assert np.array_equal(graph.features, same.features)
    with pytest.raises(PlanError):
        study.generate("blocks phi=0.25")


def test_a_study_runs_and_reports(study: Study, data: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    found = reproduce(study, data, tmp_path / "out", ledger)
    report = found.report.read_text()
    assert "71.5" in report
    assert "| φ | -0.5 | 0.5 |" in report
    assert "| hops K | 1 | 2 |" in report
    assert set(found.pictures) == {"arc", "hops"}
    assert any("absent" in remark for remark in found.remarks)
    charges = len(ledger.entries())
    again = reproduce(study, data, tmp_path / "out", ledger)
    assert again.to_dict() == found.to_dict()
    assert len(ledger.entries()) == charges


def test_quick_runs_little(study: Study, data: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    found = reproduce(study, data, tmp_path / "out", ledger, quick=True)
    assert {line.experiment for line in found.lines} == {"table"}
    assert len(ledger.entries()) == 2


def test_a_folder_without_data_is_refused(study: Study, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with pytest.raises(PlanError, match="no data set of table"):
        reproduce(study, tmp_path, tmp_path / "out", ledger, only=["table"])


def test_what_is_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / CONFIG_FILE
    path.write_text('title = "half"')
    with pytest.raises(PlanError, match="not a configuration"):
        read_study(path)
