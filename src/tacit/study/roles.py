"""Which node plays which role in a run: cut in two, split, or as the graph brings it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacit.errors import PlanError

if TYPE_CHECKING:
    from tacit.graph import Graph
    from tacit.study.recipe import Recipe

SPLIT = (75.0, 10.0, 15.0)
"""Shares of training, validation and test nodes where nobody says."""


def with_roles(
    graph: Graph, recipe: Recipe, ratios: tuple[float, float, float] | None, seed: int
) -> Graph:
    """The graph as a run of this recipe sees it.

    Args:
        graph: As it was read, perhaps with a public graph beside it.
        recipe: What will run; its settings may ask for a cut.
        ratios: The split asked for; None for the graph's own, else 75/10/15.
        seed: Of cut and split.

    Raises:
        PlanError: A cut was asked for although a public graph was given.
    """
    from tacit.graph import cut

    sizes = recipe.cut
    if sizes is not None:
        if graph.public is not None:
            raise PlanError(
                "a public graph was given, and one file was to be cut in two",
                why="the private graph would lose nodes to a second public one",
                remedy="leave out --public, or private_nodes, public_train and public_test",
            )
        return cut(graph, sizes, seed)
    return with_split(graph, ratios, seed)


def with_split(graph: Graph, ratios: tuple[float, float, float] | None, seed: int) -> Graph:
    """The graph with the split asked for, its own if it brings one, else 75/10/15."""
    from tacit.graph import split

    if ratios is None and graph.train.any():
        return graph
    return split(graph, ratios or SPLIT, seed)
