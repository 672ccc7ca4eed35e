"""What is learnt from a session's released sums: by the server, or from users' summaries."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tacit.graph.graph import BoolArray, FloatArray
from tacit.learn.networks import MLP
from tacit.learn.train import TrainConfig, predict_logits, train
from tacit.methods.base import Progress
from tacit.methods.dpa_settings import DpaSettings
from tacit.multiparty.records import Records, Released, evidence, weights_of_summary
from tacit.multiparty.session import SessionPlan

Weights = dict[str, np.ndarray]

_LEAST = 1e-3


def learn_from_summary(plan: SessionPlan, released: Released) -> Weights:
    """Ridge regression of labels on users' evidence, and what evidence is made of.

    Args:
        plan: The session, its last round a summary.
        released: What the session released.
    """
    turn = plan.rounds[-1]
    # k classes columns for (evidence, label) and k (k + 1) / 2 for evidence with itself.
    width = 1
    while width * plan.classes + width * (width + 1) // 2 < turn.columns:
        width += 1
    found = {"answer": weights_of_summary(plan, width, released[turn.name], turn.noise_std)}
    if "profile.1" in released:
        found["profile"] = released["profile.1"].copy()
    return found


def answer_of_users(
    plan: SessionPlan, records: Records, released: Released, weights: Weights
) -> FloatArray:
    """Every user's own posterior: own record, released sums, released weights.

    Regression on one-hot labels estimates probabilities, which are cut to be some.
    """
    known = dict(released)
    if "profile" in weights:
        known["profile.1"] = weights["profile"]
    scores = np.maximum(evidence(plan, records, known) @ weights["answer"], _LEAST)
    return (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)


class ServerNetwork:
    """The paper's MLP on the last feature sums, trained on the largest label sum of each user.

    Equations 24 to 26. Training and validation read released sums only, so that both are free.

    Args:
        settings: The settings.
        width: Columns of the feature sums.
        classes: Number of classes.
        seed: Of weights and order.
    """

    def __init__(self, settings: DpaSettings, width: int, classes: int, seed: int) -> None:
        self.settings, self.seed, self.scale = settings, seed, 1.0
        self.network: nn.Module = MLP(
            width,
            settings.hidden,
            classes,
            settings.layers,
            dropout=settings.dropout,
            activation="relu",
            seed=seed,
        )

    def fit(
        self,
        features: FloatArray,
        labels: FloatArray,
        chosen: BoolArray,
        held: BoolArray,
        progress: Progress,
    ) -> None:
        """Train on users with ``chosen``; the epoch is chosen by users with ``held``."""
        settings = self.settings
        length = np.sqrt(np.mean(np.square(features).sum(axis=1)))
        self.scale = float(np.float32(settings.input_length / max(length, 1e-9)))
        inputs = self._inputs(features)
        # Equation 24: the class with the largest aggregated label is the label trained on.
        targets = torch.from_numpy(labels.argmax(axis=1))
        mine, watched = (torch.from_numpy(np.flatnonzero(mask)) for mask in (chosen, held))
        train(
            self.network,
            (inputs[mine],),
            targets[mine],
            TrainConfig(
                epochs=settings.epochs,
                learning_rate=settings.learning_rate,
                weight_decay=settings.weight_decay,
                batch_size=settings.batch,
            ),
            seed=self.seed,
            val=((inputs[watched],), targets[watched]) if len(watched) else None,
            on_epoch=lambda epoch, loss: progress("network", epoch + 1, settings.epochs),
        )

    def posteriors(self, features: FloatArray) -> FloatArray:
        """Class probabilities of rows of feature sums."""
        return predict_logits(self.network, (self._inputs(features),)).softmax(dim=1).numpy()

    def weights(self) -> Weights:
        """Every parameter by name."""
        found = {k: v.detach().numpy().copy() for k, v in self.network.state_dict().items()}
        return {"scale": np.asarray([self.scale], np.float32), **found}

    def load(self, weights: Weights) -> None:
        """Take up parameters that :meth:`weights` gave."""
        self.scale = float(weights["scale"][0])
        rest = {k: torch.from_numpy(v.copy()) for k, v in weights.items() if k != "scale"}
        self.network.load_state_dict(rest)

    def _inputs(self, features: FloatArray) -> torch.Tensor:
        return torch.from_numpy(features * np.float32(self.scale))
