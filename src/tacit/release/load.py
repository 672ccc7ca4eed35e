"""A bundle at work: predictions from what was released, without the graph it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from tacit.errors import ReleaseError, TacitError
from tacit.graph import Graph
from tacit.graph.build import rows_of
from tacit.privacy.units import Edge, Node
from tacit.release.card import answered_nodes, for_public, reads_sums, rows_are_own
from tacit.release.verify import BundleInfo, verified

if TYPE_CHECKING:
    from tacit.methods.base import Fitted, Method
    from tacit.privacy.statement import Statement


@dataclass(frozen=True)
class Bundle:
    """A verified bundle that can answer.

    Attributes:
        info: What it holds and promises.
        released: The noisy sums, one row per node.
        posteriors: Predictions of every node, where they may be shown to anyone.
    """

    info: BundleInfo
    released: dict[str, np.ndarray]
    posteriors: np.ndarray | None
    _method: Method
    _fitted: Fitted

    @property
    def statement(self) -> Statement:
        """What it promises."""
        return self.info.statement

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The owner's names of the classes, if there are any."""
        return self.info.classes

    def predict_proba(
        self, features: ArrayLike | None = None, *, nodes: Sequence[int] | None = None
    ) -> np.ndarray:
        """Class probabilities, one row per node.

        Args:
            features: Feature rows to answer for. None gives the predictions in the bundle. A method
                that reads sums needs ``nodes`` with them; an MLP answers for any rows.
            nodes: Which nodes, by number. None for all, or (with features) rows 0, 1, 2, ... when
                there is one for every node.

        Returns:
            Probabilities [rows, classes].

        Raises:
            ReleaseError: The unit does not let this bundle answer that.

        A prediction from given features averages all encoders, where the predictions in the bundle
        take for each training node those that had not seen it: the two may differ a little there.
        """
        if features is None:
            if self.posteriors is None:
                raise ReleaseError(
                    f"this bundle holds no predictions under the unit {self.statement.unit}",
                    why="each is for its own node alone, because it reads that node's record",
                    remedy="use predict_record with a person's own record"
                    if self._takes_lists()
                    else "give the features of the rows to answer for"
                    if not reads_sums(self.info.plan)
                    else "ask the owner of the data",
                )
            return self.posteriors if nodes is None else self.posteriors[self._numbers(nodes)]
        rows = self._rows(features)
        if not reads_sums(self.info.plan):
            return self._answer(_records(rows, self.info), {}, outsiders=nodes is None)
        if not isinstance(self.info.plan.unit, Edge):
            raise ReleaseError(
                "features alone do not make this prediction",
                why="it also reads the list of links in each person's own record",
                remedy="use predict_record(features, links, node=...) for one person at a time",
            )
        numbers = (
            np.arange(answered_nodes(self.info.plan)) if nodes is None else self._numbers(nodes)
        )
        if len(numbers) != len(rows):
            raise ReleaseError(
                f"{len(rows)} feature rows do not say which of the {len(numbers)} nodes they are",
                remedy="give nodes=... with one number per row",
            )
        released = {name: array[numbers] for name, array in self.released.items()}
        return self._answer(_records(rows, self.info), released, outsiders=False)

    def predict(
        self, features: ArrayLike | None = None, *, nodes: Sequence[int] | None = None
    ) -> np.ndarray:
        """Predicted classes; see :meth:`predict_proba`."""
        return self.predict_proba(features, nodes=nodes).argmax(axis=1)

    def predict_graph_proba(self, graph: Graph) -> np.ndarray:
        """Class probabilities of every node of another public graph, from its features and links.

        Args:
            graph: A graph with the features that the model knows. Its labels are not read.

        Returns:
            Probabilities [nodes, classes].

        Raises:
            ReleaseError: The method did not learn for a public graph, or the graph does not fit.
        """
        if not for_public(self.info.plan):
            raise ReleaseError(
                f"{self.info.plan.method} does not answer for whole graphs from a bundle",
                why="it reads a private graph through noise of its own, which is charged",
                remedy="ask the owner of the run: tacit predict RUN GRAPH",
            )
        self._rows(graph.features)
        return self._method._infer(self._fitted, graph, None, lambda stage, done, total: None)

    def predict_graph(self, graph: Graph) -> np.ndarray:
        """Predicted classes; see :meth:`predict_graph_proba`."""
        return self.predict_graph_proba(graph).argmax(axis=1)

    def predict_record(
        self,
        features: ArrayLike,
        links: Sequence[int] = (),
        *,
        node: int | None = None,
        label: int | None = None,
    ) -> np.ndarray:
        """Class probabilities for one person, from that person's own record and this bundle.

        The answer is for that person. It is the same as in the run when the record is the same.

        Args:
            features: The person's features.
            links: The person's own list: numbers of the nodes it names.
            node: The person's own number, if its record took part. The sums it is in then hold its
                own share, which is taken out again. None for someone who took no part: nobody's
                list names them, so their own row of each sum is zero.
            label: The label it was trained with, if the person was a training node.

        Returns:
            Probabilities [classes].

        Raises:
            ReleaseError: The record is impossible, or the unit does not allow it.
        """
        facts = self.info.plan.facts
        if reads_sums(self.info.plan) and rows_are_own(self.info.plan):
            raise ReleaseError(
                "this bundle cannot answer for a node",
                why="the answer reads the node's own row of the sums, which is for that node alone "
                "and did not leave with the bundle",
                remedy="ask the owner of the data",
            )
        rows = self._rows(np.asarray(features)[None] if np.ndim(features) == 1 else features)
        if len(rows) != 1:
            raise ReleaseError(f"one record has one feature row, not {len(rows)}")
        if label is not None and (node is None or not 0 <= label < facts.classes):
            raise ReleaseError(
                f"label {label} cannot be that of a record that was trained on",
                remedy="leave label out, unless node was a training node",
            )
        own = None if node is None else int(self._numbers([node])[0])
        listed = self._numbers(links)
        if len(np.unique(listed)) != len(listed) or own in listed:
            raise ReleaseError("a list names nobody twice, and not the person itself")
        if not self._takes_lists():
            listed = listed[:0]
        elif len(listed) > self._longest_list():
            raise ReleaseError(
                f"a list of {len(listed)} is longer than max_degree={self._longest_list()}",
                why="lists were cut at random before they were summed, and the bundle does not say "
                "which entries were kept",
                remedy="name the entries that took part",
            )
        # A graph of the person and those it lists: row 0 is the person's record, the others hold
        # nothing of their own, and the sums bring what was released of each.
        records = _records(rows, self.info, listed=len(listed), label=label)
        released = {}
        for name, array in self.released.items():
            mine = np.zeros_like(array[:1]) if own is None else array[own : own + 1]
            released[name] = np.concatenate([mine, array[listed]])
        return self._answer(records, released, outsiders=own is None)[0]

    def _answer(
        self, records: Graph, released: dict[str, np.ndarray], *, outsiders: bool
    ) -> np.ndarray:
        return self._method._answer(self._fitted, records, released, outsiders=outsiders)

    def _takes_lists(self) -> bool:
        return bool(getattr(self.info.plan.settings, "own_list", False))

    def _longest_list(self) -> float:
        plan = self.info.plan
        cut = getattr(plan.settings, "bound", "scale") == "sample" and isinstance(plan.unit, Node)
        return (plan.unit.max_degree or 1) if cut and isinstance(plan.unit, Node) else np.inf

    def _rows(self, features: ArrayLike) -> np.ndarray:
        rows = np.asarray(features, np.float32)
        width = self.info.plan.facts.features
        if rows.ndim != 2 or rows.shape[1] != width or not np.isfinite(rows).all():
            raise ReleaseError(
                f"features of shape {rows.shape} do not fit, or are not finite",
                remedy=f"give rows of {width} finite numbers",
            )
        return rows

    def _numbers(self, nodes: Sequence[int] | np.ndarray) -> np.ndarray:
        numbers = np.asarray(nodes)
        count = answered_nodes(self.info.plan)
        whole = numbers.ndim == 1 and (numbers.dtype.kind in "iu" or numbers.size == 0)
        if not whole or (numbers.size and not (numbers.min() >= 0 and numbers.max() < count)):
            raise ReleaseError(
                "nodes are named by their numbers",
                why=f"each is a whole number from 0 to {count - 1}",
            )
        return numbers.astype(np.int64)


def load_bundle(path: str | Path) -> Bundle:
    """Verify a bundle and open it for predictions.

    Args:
        path: A bundle's folder or zip archive.

    Raises:
        ReleaseError: The bundle does not verify, or its weights do not make its model.
    """
    from tacit.methods.base import Fitted, Outcome
    from tacit.methods.run import rebuilt

    info, arrays = verified(path)
    facts = info.plan.facts
    released = {name[9:]: array for name, array in arrays.items() if name.startswith("released/")}
    outcome = Outcome(
        posteriors=np.empty((0, facts.classes), np.float32),
        released={},
        weights={name[8:]: array for name, array in arrays.items() if name.startswith("weights/")},
        public_posteriors=info.public_posteriors,
    )
    fitted = Fitted(
        plan=info.plan,
        statement=info.statement,
        outcome=outcome,
        metrics={},
        run="",
        data="",
        seconds=0.0,
        classes=info.classes,
    )
    try:
        method = rebuilt(info.plan, seed=0, noise="secure")
        bundle = Bundle(info, released, arrays.get("posteriors"), method, fitted)
        _try(bundle)
    except (TacitError, RuntimeError, KeyError, ValueError, TypeError, IndexError) as error:
        raise ReleaseError(
            "the bundle's weights do not make its model", why=f"{type(error).__name__}: {error}"
        ) from error
    return bundle


def _try(bundle: Bundle) -> None:
    """One answer to an empty record shows that weights, sums and plan belong together."""
    facts = bundle.info.plan.facts
    if reads_sums(bundle.info.plan) and rows_are_own(bundle.info.plan):
        return
    rows = np.zeros((1, facts.features), np.float32)
    released = {name: array[:1] for name, array in bundle.released.items()}
    alone = not reads_sums(bundle.info.plan)
    answer = bundle._answer(_records(rows, bundle.info), released, outsiders=alone)
    if answer.shape != (1, facts.classes):
        raise ReleaseError(f"the model answers with {answer.shape[1:]} classes")


def _records(
    rows: np.ndarray, info: BundleInfo, *, listed: int = 0, label: int | None = None
) -> Graph:
    """A graph that holds own records: the rows, then nodes that row 0 lists and nothing else."""
    size, facts = len(rows) + listed, info.plan.facts
    targets = np.arange(len(rows), size, dtype=np.int32)
    indptr, indices = rows_of(np.zeros(listed, np.int32), targets, size)
    labels, none = np.full(size, -1), np.zeros(size, bool)
    train = none.copy()
    if label is not None:
        labels[0], train[0] = label, True
    arrays: dict[str, Any] = {"indptr": indptr, "indices": indices, "labels": labels}
    blank = np.zeros((listed, facts.features), np.float32)
    return Graph(
        **arrays,
        features=np.concatenate([rows, blank]),
        train=train,
        val=none,
        test=none,
        directed=True,
        classes=facts.classes,
    )
