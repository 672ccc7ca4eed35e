"""What the census makes of public data: cells before the release, a student after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacit.graph import Graph
from tacit.learn.clusters import centres, nearest
from tacit.learn.counts import posterior_counts, shares
from tacit.methods.base import Progress
from tacit.methods.census_cells import Columns, Rows, encoded, neighbour_means

if TYPE_CHECKING:
    from torch import nn

    from tacit.methods.census import CensusSettings

_INPUT_DROPOUT = 0.2


def placed(
    public: Graph, features: Rows, settings: CensusSettings, seed: int, progress: Progress
) -> tuple[Columns, np.ndarray, np.ndarray]:
    """The map from features to cells, and the cells of public and of private nodes.

    Args:
        public: The public graph; everything but the last answer is made from it alone.
        features: Private feature rows; the cell of each reads that row alone.
        settings: Sizes.
        seed: Of everything that is drawn.
        progress: Told what is done.

    Returns:
        The columns, and the cells of public and of private nodes, one row for each partition.
    """
    progress("cells", 0, settings.partitions)
    columns = Columns.made(public.features, settings.width, seed)
    mine, theirs = encoded(
        public,
        columns(public.features),
        columns(features),
        context=settings.context,
        hidden=settings.encoder_hidden,
        epochs=settings.encoder_epochs,
        seed=seed,
    )
    found = []
    for part in range(settings.partitions):
        cores = centres(mine, settings.cells, seed=seed + part)
        found.append((nearest(mine, cores), nearest(theirs, cores)))
        progress("cells", part + 1, settings.partitions)
    return columns, np.stack([a for a, _ in found]), np.stack([b for _, b in found])


@dataclass(frozen=True)
class Student:
    """A network over a public graph's neighbour means. It can answer for any public graph.

    Attributes:
        columns: How features become rows.
        sizes: Root mean square of each hop's rows on the graph it learned on.
        network: The network.
        smooth: Share of the neighbours' mean in an answer.
    """

    columns: Columns
    sizes: Rows
    network: nn.Module
    smooth: float

    @classmethod
    def taught(
        cls,
        public: Graph,
        columns: Columns,
        cells: np.ndarray,
        noisy: np.ndarray,
        scale: float,
        settings: CensusSettings,
        seed: int,
        progress: Progress,
    ) -> Student:
        """A student of noisy tables.

        Args:
            public: The public graph.
            columns: How features become rows.
            cells: The cell of each public node, one row for each partition.
            noisy: What was released, [partitions, cells, classes].
            scale: Of its noise.
            settings: Sizes.
            seed: Of weights and dropout.
            progress: Told what is done.
        """
        import torch

        from tacit.learn.proportions import Bags, ProportionConfig, train_proportions

        counts = posterior_counts(noisy, scale)
        bags, own = [], np.zeros((public.nodes, noisy.shape[2]))
        for row, table in zip(cells, counts, strict=True):
            known = shares(table)
            own += known[row] / len(cells)
            weight = table.sum(axis=1) + 1e-9
            bags.append(
                Bags(
                    torch.from_numpy(row),
                    torch.from_numpy(known.astype(np.float32)),
                    torch.from_numpy(weight.astype(np.float32)),
                )
            )
        means = neighbour_means(public, columns(public.features), settings.reach)
        sizes = np.array([np.sqrt((m**2).mean()) or 1.0 for m in means], np.float32)
        network = _network(means[0].shape[1] * len(means), noisy.shape[2], settings, seed)
        student = cls(columns, sizes, network, settings.smooth)
        train_proportions(
            network,
            torch.from_numpy(student._inputs(means)),
            bags,
            torch.from_numpy(own.astype(np.float32)),
            ProportionConfig(
                settings.epochs, settings.learning_rate, settings.weight_decay, settings.distil
            ),
            seed=seed,
            on_epoch=lambda epoch, loss: progress("student", epoch + 1, settings.epochs),
        )
        return student

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], classes: int, settings: CensusSettings) -> Student:
        """The student that :meth:`arrays` wrote."""
        import torch

        columns = Columns.of({k[8:]: v for k, v in arrays.items() if k.startswith("columns.")})
        sizes = arrays["sizes"]
        network = _network(columns.axes.shape[1] * len(sizes), classes, settings, 0)
        state = {k[8:]: v for k, v in arrays.items() if k.startswith("student.")}
        network.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in state.items()})
        return cls(columns, sizes, network, settings.smooth)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it as arrays by name."""
        state = self.network.state_dict().items()
        return {
            **{f"columns.{k}": v for k, v in self.columns.arrays().items()},
            "sizes": self.sizes,
            **{f"student.{k}": v.detach().numpy().copy() for k, v in state},
        }

    def posteriors(self, public: Graph) -> np.ndarray:
        """Class probabilities of every node of a public graph. Reads no label."""
        import torch

        from tacit.learn.train import predict_logits

        means = neighbour_means(public, self.columns(public.features), len(self.sizes) - 1)
        rows = torch.from_numpy(self._inputs(means))
        answers = predict_logits(self.network, (rows,)).softmax(dim=1).numpy()
        around = neighbour_means(public, answers, 1)[1]
        return (1 - self.smooth) * answers + self.smooth * around

    def _inputs(self, means: list[Rows]) -> Rows:
        return np.concatenate([m / s for m, s in zip(means, self.sizes, strict=True)], axis=1)


def _network(width: int, classes: int, settings: CensusSettings, seed: int) -> nn.Module:
    from torch import nn

    from tacit.learn import networks

    return nn.Sequential(
        nn.Dropout(_INPUT_DROPOUT),
        networks.MLP(
            width,
            settings.hidden,
            classes,
            settings.layers,
            dropout=settings.dropout,
            activation="relu",
            seed=seed,
        ),
    )
