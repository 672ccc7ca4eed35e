r"""The likelihood-ratio attack on membership: what would this answer be without the node?

LiRA (Carlini, Chien, Nasr, Song, Terzis, Tramèr, "Membership Inference Attacks From First
Principles", IEEE S&P 2022), in its online form: many shadow models, each trained on a random share
of the nodes, give for every node the confidence :math:`\phi = \log p_y - \log(1 - p_y)` of models
that were trained on it and of models that were not. Two normal distributions per node, with one
variance each for all nodes while models are few, and the score is the logarithm of their ratio at
the target's own confidence. It asks what the node itself changed, not how sure models are at large.

What it costs: as :mod:`tacit.attacks.membership`, nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tacit.attacks import curves
from tacit.attacks.membership import Exposure, Floats, Mask, Membership, candidates_of, drawn
from tacit.errors import AttackError
from tacit.graph import Graph

MODELS = 16
_FLOOR = 1e-9
_FEW = 64  # below so many models a variance per node is too noisy: the paper's advice


def confidences(posteriors: np.ndarray, labels: NDArray[np.int64]) -> Floats:
    """The logit of the true class's posterior, which is close to normal over models."""
    true = np.take_along_axis(posteriors.astype(float), labels[:, None], axis=1)[:, 0]
    true = np.clip(true, _FLOOR, 1 - _FLOOR)
    found: Floats = np.log(true) - np.log1p(-true)
    return found


def ratios(aim: Floats, seen: Floats, members: Mask) -> Floats:
    """The log likelihood ratio of each node's confidence in the target.

    Args:
        aim: Confidence of each node in the target.
        seen: Confidences of each node in the shadow models [models, nodes].
        members: Whether each shadow model was trained on each node [models, nodes].
    """
    means, stds = [], []
    for mask in (members, ~members):
        count = mask.sum(axis=0)
        if (count < 2).any():
            raise AttackError(
                "a node was trained on by fewer than two shadow models, or by all but one",
                remedy="train more shadow models",
            )
        mean = np.where(mask, seen, 0).sum(axis=0) / count
        square = np.where(mask, (seen - mean) ** 2, 0).sum(axis=0)
        if len(seen) < _FEW:
            std = np.full(len(aim), np.sqrt(square.sum() / (count - 1).sum()))
        else:
            std = np.sqrt(square / (count - 1))
        means.append(mean)
        stds.append(std + 1e-6)
    inside, outside = (
        -0.5 * ((aim - mean) / std) ** 2 - np.log(std)
        for mean, std in zip(means, stds, strict=True)
    )
    return np.asarray(inside - outside, float)


def likelihood_ratio_attack(
    expose: Exposure,
    graph: Graph,
    *,
    share: float = 0.5,
    target: tuple[np.ndarray, Mask] | None = None,
    models: int = MODELS,
    targets: int = 4,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Membership:
    """Attack a target, or targets trained for the purpose.

    Targets are no shadow models of each other: every node is in the same number of shadow models,
    so a target taken from among them would give its members away by what is left.

    Args:
        expose: How models are trained.
        graph: Where all members come from.
        share: Of the candidates that are members of a model.
        target: Posteriors of all nodes, and the members. None trains ``targets``.
        models: How many shadow models are trained.
        targets: How many targets, where none is given.
        seed: Of the first model.
        progress: Told what is done.
    """
    started = time.perf_counter()
    rng = np.random.default_rng(seed)
    candidates = candidates_of(graph) if target is None else candidates_of(graph) | target[1]
    labels = graph.labels[candidates]
    masks = _balanced(candidates, share, models, rng)
    if target is None:
        masks += [drawn(candidates, share, rng) for _ in range(targets)]
    told = []
    for index, mask in enumerate(masks):
        told.append(confidences(expose(graph, mask, seed + index)[candidates], labels))
        if progress is not None:
            progress("models", index + 1, len(masks))
    seen, inside = np.stack(told[:models]), np.stack(masks[:models])[:, candidates]
    if target is None:
        aims = list(zip(told[models:], masks[models:], strict=True))
    else:
        aims = [(confidences(target[0][candidates], labels), target[1])]
    scores = [ratios(aim, seen, inside) for aim, _ in aims]
    truths = [mask[candidates] for _, mask in aims]
    return Membership(
        "likelihood ratio",
        tuple(curves.auc(s, t) for s, t in zip(scores, truths, strict=True)),
        np.concatenate(scores),
        np.concatenate(truths),
        time.perf_counter() - started,
    )


def _balanced(candidates: Mask, share: float, models: int, rng: np.random.Generator) -> list[Mask]:
    """Members of each model: every node is in the same number of models, and out of the rest."""
    if models < 8:
        raise AttackError(
            f"{models} shadow models are too few for two distributions", remedy="train 8 or more"
        )
    drawn(candidates, share, rng)  # refuses a share that leaves nothing to tell apart
    found = np.flatnonzero(candidates)
    ins = np.zeros((models, len(candidates)), bool)
    count = min(max(round(share * models), 3), models - 3)
    order = rng.random((models, len(found))).argsort(axis=0)
    ins[:, found] = order < count
    return list(ins)
