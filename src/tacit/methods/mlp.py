"""The baseline that reads no links: an MLP, trained plainly or by DP-SGD.

Under ``Edge`` it costs nothing (epsilon is 0, because no link is read); under node units it is
DP-MLP. Every method has to beat the MLP of its own unit, or say why not.

Formal guarantees:
    Edge: nothing protected is read. Node (either reading of links) and KNeighbors: no link is read
    and one individual has one row, so DP-SGD's bound holds: one record moves a clipped sum by at
    most C (proofs/dpsgd.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tacit.errors import PlanError
from tacit.graph import Graph, PublicFacts
from tacit.methods.base import Fitted, Method, Noise, Outcome, Progress
from tacit.methods.gap_settings import protects_nodes
from tacit.privacy.plan import Accounting, Plan, Stage, calibrated
from tacit.privacy.units import Edge, Unit

if TYPE_CHECKING:
    from torch import nn

    from tacit.privacy.noise import NoiseSource


@dataclass(frozen=True)
class MlpSettings:
    """Everything about the MLP but its unit and budget.

    Attributes:
        hidden: Width of hidden layers.
        layers: Number of linear layers.
        dropout: Of hidden layers.
        batch_norm: Whether hidden layers use batch norm; never where records are protected.
        normalise: Whether feature rows are scaled to unit length.
        epochs: Passes of plain training, at most.
        patience: Epochs without a better validation score before plain training stops; 0 never.
        learning_rate: Of plain training, and of DP-SGD.
        weight_decay: Of training.
        sampling_rate: Poisson rate of DP-SGD.
        steps: Steps of DP-SGD.
        clip: Gradient norm bound of DP-SGD.
        average_last: Fraction of the last steps of DP-SGD whose weights are averaged.
    """

    hidden: int
    layers: int
    dropout: float
    batch_norm: bool
    normalise: bool
    epochs: int
    patience: int
    learning_rate: float
    weight_decay: float
    sampling_rate: float
    steps: int
    clip: float
    average_last: float


_PLAIN = MlpSettings(64, 3, 0.5, True, True, 100, 20, 0.01, 1e-4, 1.0, 1, 1.0, 0.0)
_PRIVATE = MlpSettings(16, 2, 0.0, False, True, 1, 0, 0.02, 0.0, 0.25, 80, 1.0, 0.5)
_PAPER = MlpSettings(16, 3, 0.0, True, False, 100, 0, 0.01, 0.0, 1.0, 1, 1.0, 0.0)


class MLP(Method):
    """A multi-layer perceptron on features alone.

    Args:
        unit: What one individual is.
        epsilon: The budget of node units; nothing is spent under ``Edge``.
        delta: The budget's delta.
        preset: ``tacit`` or ``paper`` (three layers of 16, ten epochs of batches of 256).
        overrides: Any field of :class:`MlpSettings` by name.
        accounting: ``sound``, or ``paper`` to reproduce a paper's table.
        seed: Of weights and order; never of privacy noise, unless ``noise="seeded"``.
        noise: ``secure`` or ``seeded``.
    """

    name: ClassVar[str] = "mlp"

    def __init__(
        self,
        unit: Unit = Edge(),  # noqa: B008
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        preset: str = "tacit",
        overrides: Mapping[str, Any] | None = None,
        accounting: Accounting = "sound",
        seed: int = 0,
        noise: Noise = "secure",
    ) -> None:
        super().__init__(unit, epsilon, delta, accounting=accounting, seed=seed, noise=noise)
        if preset not in ("tacit", "paper"):
            raise PlanError(f"unknown preset {preset!r}", remedy="use tacit or paper")
        self.preset, self.overrides = preset, dict(overrides or {})
        known = {field.name for field in fields(MlpSettings)}
        if unknown := sorted(set(self.overrides) - known):
            raise PlanError(
                f"MLP has no setting {unknown[0]!r}",
                remedy=f"choose from {', '.join(sorted(known))}",
            )

    def plan(self, facts: PublicFacts) -> Plan:
        """Noise of DP-SGD, or no stage at all where nothing protected is read."""
        settings = self._settings(facts)
        nodes = protects_nodes(self.unit, self.epsilon)

        def stages_at(scale: float) -> tuple[Stage, ...]:
            if isinstance(self.unit, Edge):
                return ()
            reach = 2.0 if self.unit.relation == "replace" else 1.0
            return (
                Stage(
                    "classifier",
                    settings.steps,
                    scale,
                    scale * reach * settings.clip,
                    sampling_rate=settings.sampling_rate if nodes else 1.0,
                    theorem="Theorem 1 (a record moves a clipped sum by at most C), "
                    "proofs/dpsgd.md",
                ),
            )

        stages, cost = calibrated(stages_at, self.epsilon, self.delta, self.accounting)
        return Plan(
            method=self.name,
            unit=self.unit,
            facts=facts,
            epsilon=self.epsilon,
            delta=self.delta,
            accounting=self.accounting,
            stages=stages,
            settings=settings,
            cost=cost,
            charged=stages,
        )

    def _settings(self, facts: PublicFacts) -> MlpSettings:
        nodes = protects_nodes(self.unit, self.epsilon)
        base = _PAPER if self.preset == "paper" else _PRIVATE if nodes else _PLAIN
        values = {field.name: getattr(base, field.name) for field in fields(MlpSettings)}
        if nodes:
            values["batch_norm"] = False
            if self.preset == "paper":
                values["sampling_rate"] = min(1.0, 256 / facts.train_nodes)
                values["steps"] = 10 * -(-facts.train_nodes // 256)
            if self.unit.relation == "replace":
                values["sampling_rate"] = 1.0
        settings = MlpSettings(**{**values, **self.overrides})
        if nodes and (settings.batch_norm or settings.dropout >= 1):
            raise PlanError(
                "batch norm is not covered under node units", remedy="leave batch_norm out"
            )
        if nodes and self.unit.relation == "replace" and settings.sampling_rate < 1:
            raise PlanError(
                "sampled batches are not covered under the replace relation",
                remedy="leave sampling_rate out, or use add-remove",
            )
        return settings

    def inference_stages(self, plan: Plan) -> tuple[str, ...]:
        """None: a prediction reads that node's own features alone."""
        return ()

    def caveats(self, plan: Plan) -> tuple[str, ...]:
        """What the promise assumes."""
        if plan.stages:
            return (
                "A prediction reads that node's own features: it is for that node (or whoever may "
                "see its record) alone. The weights are for anyone.",
            )
        return ("Features and labels are public; they are not protected at all.",)

    def _run(
        self, graph: Graph, plan: Plan, source: NoiseSource | None, progress: Progress
    ) -> Outcome:
        import torch

        from tacit.learn.dpsgd import DpSgdConfig, train_private
        from tacit.learn.train import TrainConfig, train

        settings: MlpSettings = plan.settings
        network = self._network(plan)
        inputs, targets = self._rows(graph, settings), torch.tensor(graph.labels)
        chosen = torch.from_numpy(np.flatnonzero(graph.train))
        if protects_nodes(plan.unit, plan.epsilon):
            stage = plan.stage("classifier")
            train_private(
                network,
                (inputs[chosen],),
                targets[chosen],
                DpSgdConfig(
                    sampling_rate=stage.sampling_rate,
                    steps=stage.rounds,
                    noise_multiplier=stage.noise_std / settings.clip,
                    clip=settings.clip,
                    learning_rate=settings.learning_rate,
                    average_last=settings.average_last,
                    weight_decay=settings.weight_decay,
                ),
                source=source,
                seed=self.seed,
                on_step=lambda done: progress("classifier", done, stage.rounds),
            )
        else:
            held = torch.from_numpy(np.flatnonzero(graph.val))
            train(
                network,
                (inputs[chosen],),
                targets[chosen],
                TrainConfig(
                    epochs=settings.epochs,
                    learning_rate=settings.learning_rate,
                    weight_decay=settings.weight_decay,
                    patience=settings.patience if settings.patience and len(held) else None,
                ),
                seed=self.seed,
                val=((inputs[held],), targets[held]) if len(held) else None,
                on_epoch=lambda epoch, loss: progress("classifier", epoch + 1, settings.epochs),
            )
        return Outcome(
            posteriors=self._posteriors(network, graph, settings),
            released={},
            weights={k: v.detach().numpy().copy() for k, v in network.state_dict().items()},
            public_posteriors=isinstance(plan.unit, Edge),
        )

    def _infer(
        self, fitted: Fitted, graph: Graph, source: NoiseSource | None, progress: Progress
    ) -> np.ndarray:
        import torch

        network = self._network(fitted.plan)
        arrays = fitted.outcome.weights
        network.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in arrays.items()})
        return self._posteriors(network, graph, fitted.plan.settings)

    def _answer(
        self,
        fitted: Fitted,
        records: Graph,
        released: dict[str, np.ndarray],
        *,
        outsiders: bool,
    ) -> np.ndarray:
        return self._infer(fitted, records, None, lambda stage, done, total: None)

    def _network(self, plan: Plan) -> nn.Module:
        from tacit.learn import networks

        settings: MlpSettings = plan.settings
        return networks.MLP(
            plan.facts.features,
            settings.hidden,
            plan.facts.classes,
            settings.layers,
            dropout=settings.dropout,
            batch_norm=settings.batch_norm,
            seed=self.seed,
        )

    def _rows(self, graph: Graph, settings: MlpSettings) -> Any:
        import torch

        from tacit.aggregate import unit_rows

        return torch.tensor(unit_rows(graph.features) if settings.normalise else graph.features)

    def _posteriors(self, network: nn.Module, graph: Graph, settings: MlpSettings) -> np.ndarray:
        from tacit.learn.train import predict_logits

        return predict_logits(network, (self._rows(graph, settings),)).softmax(dim=1).numpy()
