"""A public graph beside the private one: from a file of its own, or cut out of the same file.

Methods that learn *for* a public graph (its features and links are known to everyone, its labels
are what is asked) find it in :attr:`tacit.graph.Graph.public` of the private graph. What the public
graph holds costs nothing to read; that it is public is the owner's word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.errors import GraphError
from tacit.graph.graph import Graph
from tacit.graph.transforms import subgraph


@dataclass(frozen=True)
class Cut:
    """How many nodes of one file become what (PrivGNN, Appendix F and Table 11).

    Attributes:
        private_nodes: Nodes of the private graph, all labelled.
        public_train: Nodes of the public graph that a student may be asked about.
        public_test: Nodes of the public graph whose labels only ever score.
    """

    private_nodes: int
    public_train: int
    public_test: int

    def __post_init__(self) -> None:
        if min(self.private_nodes, self.public_test) < 1 or self.public_train < 0:
            raise GraphError(
                f"cannot cut {self.private_nodes} private, {self.public_train} public training and "
                f"{self.public_test} public test nodes",
                remedy="give at least one private and one public test node",
            )

    @property
    def nodes(self) -> int:
        """How many labelled nodes the file must have."""
        return self.private_nodes + self.public_train + self.public_test


def cut(graph: Graph, sizes: Cut, seed: int = 0) -> Graph:
    """A private and a public graph out of one file, by chance, with no link across.

    Every labelled node is private, public or left out with equal probability; both graphs are
    induced, so a link between a private and a public node belongs to neither. This is how papers
    measure; the two parts of a real file are one owner's data, so publish the public part only if
    it is public.

    Args:
        graph: The file.
        sizes: How many nodes become what.
        seed: Which cut. The same seed gives the same cut on every machine.

    Returns:
        The private graph, every node a training node, with the public one beside it.

    Raises:
        GraphError: The file has too few labelled nodes.
    """
    labelled = np.flatnonzero(graph.labels >= 0)
    if sizes.nodes > len(labelled):
        raise GraphError(
            f"cannot cut {sizes.nodes} nodes out of {len(labelled)} with a label",
            why=f"{sizes.private_nodes} private, {sizes.public_train} public training and "
            f"{sizes.public_test} public test nodes were asked for",
            remedy="ask for fewer",
        )
    order = np.random.default_rng(seed).permutation(labelled)
    mine = np.sort(order[: sizes.private_nodes])
    asked = np.sort(order[sizes.private_nodes : sizes.private_nodes + sizes.public_train])
    score = np.sort(order[sizes.private_nodes + sizes.public_train : sizes.nodes])
    none = np.zeros(graph.nodes, bool)
    train, test = none.copy(), none.copy()
    train[asked], test[score] = True, True
    public = subgraph(
        graph.with_(train=train, val=none, test=test), np.sort(np.concatenate([asked, score]))
    )
    train = none.copy()
    train[mine] = True
    private = subgraph(graph.with_(train=train, val=none, test=none), mine)
    return beside(private, public.with_(name=f"{graph.name}, public part"))


def beside(private: Graph, public: Graph) -> Graph:
    """The private graph with a public one beside it.

    A public graph without roles gets them: every labelled node is a test node, because no method
    reads a public label. A private graph without roles trains on every labelled node.

    Args:
        private: The graph whose nodes are protected.
        public: The graph that everyone knows.

    Raises:
        GraphError: The two do not speak of the same features and classes.
    """
    if not (public.train | public.val | public.test).any():
        public = public.with_(test=public.labels >= 0)
    if not (private.train | private.val | private.test).any():
        private = private.with_(train=private.labels >= 0)
    check_public(private, public)
    return private.with_(public=public)


def check_public(private: Graph, public: Graph) -> None:
    """Refuse a public graph that speaks of other features or classes than the private one.

    Raises:
        GraphError: With what differs.
    """
    if public.public is not None:
        raise GraphError("a public graph has no public graph of its own", remedy="leave it out")
    mine, other = private.features.shape[1], public.features.shape[1]
    if mine != other:
        raise GraphError(
            f"the public graph has {other} features and the private one {mine}",
            why="a private node is placed among public ones by its features",
            remedy="bring both into the same columns, in the same order",
        )
    if private.classes != public.classes:
        raise GraphError(
            f"the public graph has {public.classes} classes and the private one {private.classes}",
            why="what is learnt from one is said of the other",
            remedy="number the same classes alike in both; unlabelled nodes are -1",
        )
    names = private.class_names, public.class_names
    if None not in names and names[0] != names[1]:
        raise GraphError(
            "the public graph names its classes differently",
            why=f"{names[1]} instead of {names[0]}",
            remedy="number the same classes alike in both",
        )


def without_labels(public: Graph) -> Graph:
    """The public graph as a method may see it: no label, and no node to train on.

    The test mask stays: which nodes will be scored is public.
    """
    none = np.zeros(public.nodes, bool)
    return public.with_(labels=np.full(public.nodes, -1), train=none, val=none)
