r"""Graphs out of nothing: the contextual stochastic block model and a community graph.

Both take time and memory in proportion to the links, up to 100 million arcs, and give the same
graph for the same seed. Both are symmetric, without self-loops and duplicates, and come split
75/10/15 by their seed.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.errors import GraphError
from tacit.graph.build import rows_of
from tacit.graph.graph import MAX_NODES, Graph, transpose
from tacit.graph.transforms import split

_LOW = np.int64(0xFFFFFFFF)
_ROUNDS = 20


def csbm(
    nodes: int = 10_000,
    mean_degree: float = 5.0,
    mu: float = 10.3,
    lam: float = 1.46,
    features: int = 200,
    seed: int = 0,
) -> Graph:
    r"""The contextual stochastic block model of DPDGC, Appendix K (after Deshpande et al., 2018).

    Two classes of equal size, :math:`v_i = \pm 1`, and with n nodes, f features and mean degree d

    .. math::
        b_i = \sqrt{\mu / n}\, v_i u + Z_i / \sqrt{f}, \qquad
        P(A_{ij} = 1) = (d + \lambda \sqrt{d}\, v_i v_j) / n,

    where :math:`u \sim N(0, I/f)` and the entries of :math:`Z_i` are standard normal. The classes
    can be told apart as n and f grow if and only if :math:`\lambda^2 + \mu^2 / \xi > 1` with
    :math:`\xi = n / f`.

    Args:
        nodes: n.
        mean_degree: d.
        mu: Strength of the features, at least 0.
        lam: Strength of the links; negative for links across the classes.
        features: f.
        seed: Which graph.

    Returns:
        The graph; class 1 is :math:`v = +1`.

    Raises:
        GraphError: The link probabilities would leave [0, 1].
    """
    _check(nodes, mean_degree, features, 2)
    pull = lam * math.sqrt(mean_degree)
    if abs(pull) > mean_degree or mean_degree + abs(pull) > nodes:
        raise GraphError(
            f"no links can have mean degree {mean_degree} and lambda {lam}",
            why=f"the probabilities ({mean_degree} ± {pull:.4g}) / {nodes} must lie in [0, 1]",
            remedy="raise the mean degree to at least lambda squared",
        )
    if mu < 0:
        raise GraphError(f"mu is {mu}", why="its square root scales the features")
    rng = np.random.default_rng(seed)
    labels = np.zeros(nodes, dtype=np.int64)
    labels[: nodes // 2] = 1
    rng.shuffle(labels)
    members = [np.flatnonzero(labels == c).astype(np.int32) for c in (0, 1)]
    links = []
    for a, b in ((0, 0), (1, 1), (0, 1)):
        size_a, size_b = len(members[a]), len(members[b])
        pairs = size_a * (size_a - 1) // 2 if a == b else size_a * size_b
        chance = (mean_degree + (pull if a == b else -pull)) / nodes
        links.append(_uniform_links(rng, members[a], members[b], int(rng.binomial(pairs, chance))))
    signs = (2 * labels - 1).astype(np.float32)
    direction = rng.standard_normal(features) / math.sqrt(features)
    rows = rng.standard_normal((nodes, features), dtype=np.float32)
    rows /= np.float32(math.sqrt(features))
    rows += np.outer(signs, (math.sqrt(mu / nodes) * direction).astype(np.float32))
    keys = np.sort(np.concatenate(links))
    return _graph(keys, rows, labels, 2, seed, "csbm")


def csbm_phi(
    phi: float,
    nodes: int = 10_000,
    mean_degree: float = 5.0,
    features: int = 200,
    margin: float = 3.25,
    seed: int = 0,
) -> Graph:
    r"""The block model on the arc :math:`\lambda^2 + \mu^2 / \xi = 1 + \epsilon`.

    All graphs of one arc are equally hard for the best estimator; :math:`\phi` says where the
    information is, as in DPDGC's Figure 3 (d) and Chien et al. (ICLR 2021):

    .. math::
        \lambda = \sqrt{1 + \epsilon}\, \sin(\phi \pi / 2), \qquad
        \mu = \sqrt{\xi (1 + \epsilon)}\, \cos(\phi \pi / 2).

    Args:
        phi: From -1 (links only, across classes) over 0 (features only) to 1 (links only, within
            classes).
        nodes: n.
        mean_degree: d; at least :math:`\lambda^2`. The paper does not state it; 5 is the value of
            the set-up it follows.
        features: f.
        margin: :math:`\epsilon`, 3.25 in the paper.
        seed: Which graph.

    Returns:
        The graph.
    """
    if not -1 <= phi <= 1 or margin < -1:
        raise GraphError(f"phi is {phi} and the margin {margin}", why="phi lies in [-1, 1]")
    lam, mu = arc_point(phi, nodes, features, margin)
    graph = csbm(nodes, mean_degree, mu, lam, features, seed)
    return graph.with_(name=f"csbm_phi_{phi:g}")


def arc_point(
    phi: float, nodes: int = 10_000, features: int = 200, margin: float = 3.25
) -> tuple[float, float]:
    """The (lambda, mu) at phi on the arc of :func:`csbm_phi`."""
    xi = nodes / features
    lam = math.sqrt(1 + margin) * math.sin(phi * math.pi / 2)
    return lam, max(0.0, math.sqrt(xi * (1 + margin)) * math.cos(phi * math.pi / 2))


def communities(
    nodes: int = 8_000,
    mean_degree: float = 40.0,
    classes: int = 6,
    features: int = 64,
    homophily: float = 0.6,
    seed: int = 0,
    *,
    feature_signal: float = 1.5,
    label_noise: float = 0.1,
    degree_spread: float = 0.8,
) -> Graph:
    r"""A degree-corrected community graph with features that know a little about the label.

    Every node belongs to a hidden community, links according to it, and carries its number as a
    label, except that a share of the labels is another one, at random. An end of a link falls on
    a node with probability in proportion to its weight :math:`\theta`, which is log-normal, so
    that a few nodes have many links. The features are the label's direction, one of an
    orthonormal set, times ``feature_signal``, plus standard normal noise.

    The defaults resemble a social network: features alone classify about 60% of the nodes,
    features and neighbours together close to 90%.

    Args:
        nodes: Number of nodes.
        mean_degree: Arcs per node, met exactly unless the graph is nearly complete.
        classes: Number of communities, of about equal size.
        features: Width of a feature row, at least the number of classes.
        homophily: Chance that a link stays inside its community; the others go to a community
            drawn at random from the rest.
        seed: Which graph.
        feature_signal: Distance of a class mean from the origin in units of the noise.
        label_noise: Share of nodes whose label is not their community.
        degree_spread: Standard deviation of :math:`\log \theta`; 0 gives equal weights.

    Returns:
        The graph.
    """
    _check(nodes, mean_degree, features, classes)
    if not 0 <= homophily <= 1 or not 0 <= label_noise <= 1:
        raise GraphError("homophily and label_noise are shares", why="they must lie in [0, 1]")
    if features < classes:
        raise GraphError(
            f"{features} features cannot hold {classes} orthogonal class directions",
            remedy="ask for at least as many features as classes",
        )
    rng = np.random.default_rng(seed)
    group = (np.arange(nodes) % classes).astype(np.int64)
    rng.shuffle(group)
    weights = np.exp(degree_spread * rng.standard_normal(nodes))
    keys = _community_links(rng, group, weights, classes, homophily, round(nodes * mean_degree / 2))
    labels = group.copy()
    wrong = np.flatnonzero(rng.random(nodes) < label_noise)
    labels[wrong] = (labels[wrong] + rng.integers(1, classes, size=len(wrong))) % classes
    frame = np.linalg.qr(rng.standard_normal((features, classes)))[0].T
    rows = rng.standard_normal((nodes, features), dtype=np.float32)
    rows += (feature_signal * frame).astype(np.float32)[labels]
    return _graph(keys, rows, labels, classes, seed, "communities")


def _check(nodes: int, mean_degree: float, features: int, classes: int) -> None:
    if not 2 <= nodes <= MAX_NODES or features < 1 or not 2 <= classes <= nodes:
        raise GraphError(
            f"no graph has {nodes} nodes, {features} features and {classes} classes",
            why=f"it needs 2 to {MAX_NODES:,} nodes, a feature, and 2 classes or more",
        )
    if not 0 <= mean_degree <= nodes - 1:
        raise GraphError(f"{nodes} nodes cannot have mean degree {mean_degree}")


def _uniform_links(
    rng: np.random.Generator, side_a: np.ndarray, side_b: np.ndarray, count: int
) -> np.ndarray:
    """``count`` different links between two sets of nodes, every such choice equally likely.

    Drawing with replacement and drawing again what collided is sampling without replacement:
    each accepted link is uniform over those not yet taken.
    """
    keys = np.empty(0, dtype=np.int64)
    while len(keys) < count:
        missing = count - len(keys)
        tail = side_a[rng.integers(len(side_a), size=missing)]
        head = side_b[rng.integers(len(side_b), size=missing)]
        keys = _merged(keys, tail, head)
    return keys


def _community_links(
    rng: np.random.Generator,
    group: np.ndarray,
    weights: np.ndarray,
    classes: int,
    homophily: float,
    count: int,
) -> np.ndarray:
    """Keys of ``count`` links; ends fall on nodes of the drawn communities by weight."""
    members = [np.flatnonzero(group == c).astype(np.int32) for c in range(classes)]
    shares = [weights[nodes] / weights[nodes].sum() for nodes in members]
    pair = np.full((classes, classes), (1 - homophily) / (classes * (classes - 1)))
    np.fill_diagonal(pair, homophily / classes)
    keys = np.empty(0, dtype=np.int64)
    # Loops and repeated links are drawn again. The rounds are limited because a dense corner of
    # the graph may have no link left to give.
    for _ in range(_ROUNDS):
        missing = count - len(keys)
        if missing <= 0:
            break
        tails, heads = [], []
        for place, links in enumerate(rng.multinomial(missing, pair.ravel())):
            a, b = divmod(place, classes)
            # Both ends are multisets with multinomial counts; shuffling one pairs them at random,
            # which has the same law as drawing every link on its own, in O(links).
            tails.append(np.repeat(members[a], rng.multinomial(links, shares[a])))
            head = np.repeat(members[b], rng.multinomial(links, shares[b]))
            rng.shuffle(head)
            heads.append(head)
        keys = _merged(keys, np.concatenate(tails), np.concatenate(heads))
    return keys


def _merged(keys: np.ndarray, tail: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Sorted distinct keys ``low << 32 | high`` of the old links and the new ones."""
    fresh = np.minimum(tail, head).astype(np.int64)
    fresh <<= 32
    fresh |= np.maximum(tail, head)
    fresh = fresh[tail != head]
    merged = np.concatenate([keys, fresh]) if len(keys) else fresh
    # A stable sort merges runs, and the old keys are one: a top-up round costs O(links).
    merged.sort(kind="stable" if len(keys) else None)
    distinct = np.ones(len(merged), dtype=bool)
    np.not_equal(merged[1:], merged[:-1], out=distinct[1:])
    return merged if distinct.all() else merged[distinct]


def _graph(
    keys: np.ndarray, rows: np.ndarray, labels: np.ndarray, classes: int, seed: int, name: str
) -> Graph:
    """A split graph from sorted keys of links, without sorting again.

    Row v of the graph is its smaller neighbours, which are row v of the transposed upper
    triangle, followed by its larger ones, which are row v of the triangle itself.
    """
    n = len(labels)
    upper, large = rows_of(keys >> 32, (keys & _LOW).astype(np.int32), n)
    lower, small = transpose(upper, large)
    indptr = upper + lower
    indices = np.empty(len(small) + len(large), dtype=np.int32)
    position = np.arange(len(small), dtype=np.int64)
    indices[position + np.repeat(upper[:-1], np.diff(lower))] = small
    indices[position + np.repeat(lower[1:], np.diff(upper))] = large
    nobody = np.zeros(n, dtype=bool)
    graph = Graph(
        indptr=indptr,
        indices=indices,
        features=rows,
        labels=labels,
        train=nobody,
        val=nobody,
        test=nobody,
        directed=False,
        classes=classes,
        name=name,
    )
    return split(graph, seed=seed)
