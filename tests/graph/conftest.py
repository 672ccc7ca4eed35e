"""A small graph that every test of this room can use, and where the real files would be."""

from pathlib import Path

import numpy as np
import pytest

from tacit.graph import Graph, from_arcs

DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture
def small() -> Graph:
    """Seven nodes in two classes, symmetric, one of them isolated, one unlabelled."""
    links = np.array([(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 6), (0, 6)])
    rng = np.random.default_rng(0)
    return from_arcs(
        links[:, 0],
        links[:, 1],
        features=rng.normal(size=(7, 3)).astype(np.float32),
        labels=np.array([0, 0, 1, 1, 0, 1, -1]),
        symmetrize=True,
        train=np.array([1, 0, 1, 0, 0, 0, 0], dtype=bool),
        val=np.array([0, 1, 0, 1, 0, 0, 0], dtype=bool),
        test=np.array([0, 0, 0, 0, 1, 1, 0], dtype=bool),
        name="small",
    )


@pytest.fixture
def data() -> Path:
    """The folder of real graphs beside the checkout; the test is skipped without it."""
    if not DATA.is_dir():
        pytest.skip("no ../shared/data beside the checkout")
    return DATA
