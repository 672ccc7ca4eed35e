"""The model card: the privacy statement in words that need no mathematics, then in full."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.privacy.plan import Plan
from tacit.privacy.statement import Statement
from tacit.privacy.units import Edge, Node

Section = tuple[str, tuple[str, ...]]


def for_public(plan: Plan) -> bool:
    """Whether the method learned for a public graph: its rows speak of public nodes alone."""
    from tacit.methods import CATALOGUE

    return CATALOGUE[plan.method].public


def answered_nodes(plan: Plan) -> int:
    """How many nodes the predictions of a run speak of."""
    return plan.facts.public_nodes if for_public(plan) else plan.facts.nodes


def rows_are_own(plan: Plan) -> bool:
    """Whether each row of what was released is for its own node alone."""
    if plan.method == "dpdgc":
        # A row sums over the node's own list: only links are protected, or the row is its node's.
        return not isinstance(plan.unit, Edge)
    return isinstance(plan.unit, Node) and plan.unit.links == "all" and not for_public(plan)


def reads_sums(plan: Plan) -> bool:
    """Whether predictions read released sums over neighbours."""
    if getattr(plan.settings, "embedding", "") == "none":
        return False
    # Hops are what GAP calls them; DPA counts layers by what they carry.
    names = ("hops", "label_layers")
    return any(getattr(plan.settings, name, 0) for name in names)


def answers_on_links(plan: Plan) -> bool:
    """Whether predictions read a perturbed graph, which then is in the bundle."""
    return bool(getattr(plan.settings, "backbone", ""))


def card(
    plan: Plan,
    statement: Statement,
    classes: Sequence[str] | None = None,
    *,
    public_posteriors: bool,
) -> str:
    """The card of a bundle, a function of what its manifest says and of nothing else.

    Args:
        plan: The plan that ran.
        statement: What it promises.
        classes: The owner's names of the classes.
        public_posteriors: Whether the bundle holds predictions.

    Returns:
        Markdown.
    """
    sections = (
        ("What this is", _what(plan, classes, public_posteriors)),
        ("Who is protected, and against whom", _who(plan, statement)),
        ("What epsilon means here", _meaning(statement)),
        ("Who may be shown what", audience(plan, public_posteriors=public_posteriors)),
        ("What is not covered", statement.not_covered),
        ("What was left out on purpose", left_out(plan, public_posteriors=public_posteriors)),
        ("How to use it", _use(plan, public_posteriors)),
        ("How to verify it", _verify()),
    )
    lines = [f"# Privacy card: a model by the method {plan.method}", ""]
    for heading, items in sections:
        lines += [f"## {heading}", "", *(f"- {item}" for item in items), ""]
    full = statement.to_markdown().replace("## ", "### ").replace("# Privacy statement", "")
    lines += ["## The statement in full", "", full.strip(), ""]
    return "\n".join(lines)


def audience(plan: Plan, *, public_posteriors: bool) -> tuple[str, ...]:
    """Who may be shown the weights, the sums and each prediction, in sentences."""
    if isinstance(plan.unit, Edge):
        return (
            "Everything in this bundle may be shown to anyone, as far as links are concerned: the "
            "promise covers it.",
            "Features and labels are not protected under this unit. The weights and the "
            "predictions were made from them and may reveal them. If features or labels are "
            "confidential, this bundle is as confidential as they are.",
        )
    if for_public(plan):
        return (
            "Everything in this bundle may be shown to anyone: what was released, the weights and "
            "the predictions for the public graph read no private record but through the noise.",
            "What the model says of any other public graph may be shown to anyone, too. Its "
            "answer for a private node reads that node's record, and is for that node alone.",
        )
    weights = "The weights may be shown to anyone: the promise covers them."
    if rows_are_own(plan) and reads_sums(plan):
        return (
            weights,
            "A prediction for a node that took part is for that node alone, or for whoever may see "
            "its whole record: it reads the node's own row of the sums. The owner of the data "
            "hands predictions out one by one; this bundle holds none.",
        )
    covered = (
        "The weights and the released sums may be shown to anyone: the promise covers them."
        if reads_sums(plan)
        else weights
    )
    if public_posteriors:
        return (covered, "So may the predictions of every node: they read nothing else.")
    return (
        covered,
        "A prediction for a person is made from that person's own record and from this bundle. "
        "It is for that person alone, or for whoever may already see that record. Collecting the "
        "predictions of many people and publishing them is not covered.",
    )


def left_out(plan: Plan, *, public_posteriors: bool) -> tuple[str, ...]:
    """What a run leaves behind that the bundle does not hold, in sentences."""
    items = [
        "Accuracies, losses and training curves: they read the private graph.",
        "Features, labels, true links, node identifiers and embeddings without noise.",
        "The fingerprint of the data, the name and notes of the run, seeds, and how long it took.",
    ]
    if rows_are_own(plan) and reads_sums(plan):
        items.append(
            "The noisy sums: under this unit the row of a node is for that node alone, so no copy "
            "of all rows may leave."
        )
    if not public_posteriors:
        items.append("Predictions: each is for its own node alone.")
    return tuple(items)


def _what(plan: Plan, classes: Sequence[str] | None, posteriors: bool) -> tuple[str, ...]:
    facts = plan.facts
    holds = ["its weights"]
    if for_public(plan):
        holds.append("what was released with noise")
    if reads_sums(plan) and not rows_are_own(plan):
        holds.append("the sums over neighbours, released with noise")
    if answers_on_links(plan):
        holds.append("the perturbed links it was trained on")
    if posteriors:
        holds.append("its predictions")
    named = " (their names are in manifest.json)" if classes else ""
    beside = (
        f"Its predictions are for a public graph of {facts.public_nodes:,} nodes, whose features "
        "and links anyone may know.",
    )
    return (
        f"A model that sorts the nodes of a network into {facts.classes} classes{named}. The "
        f"bundle holds {'; '.join(holds)}.",
        f"It was trained on a graph of {facts.nodes:,} nodes, {facts.train_nodes:,} of them with "
        f"labels to learn from, and {facts.features:,} features each. These sizes are treated as "
        "public.",
        *(beside if for_public(plan) else ()),
    )


def _who(plan: Plan, statement: Statement) -> tuple[str, ...]:
    if not plan.stages:
        return (
            statement.unit_words,
            "This method never reads what the unit protects, so there was nothing to hide and no "
            "noise was needed.",
            statement.trust_model,
        )
    return (
        f"One unit is protected at a time: {statement.unit_words}",
        "Protected against everyone who receives this bundle, whatever they know already and "
        "whoever they join with. Not protected against the curator, who held the data.",
        statement.trust_model,
    )


def _meaning(statement: Statement) -> tuple[str, ...]:
    return (
        statement.membership_words,
        "The promise limits what this bundle adds to what is known about one unit. It does not "
        "stop anyone from learning what is true of people in general, and groups of several units "
        "are protected less: the figure grows with the size of the group.",
        "It is a statement about mathematics. Whether it suffices for a law or a contract is for "
        "people to judge.",
    )


def _use(plan: Plan, posteriors: bool) -> tuple[str, ...]:
    items = ["`bundle = tacit.release.load_bundle(path)` checks and opens it, without the graph."]
    if posteriors:
        items.append(
            "`bundle.predict()` gives the class of every node"
            f"{' of the public graph' if for_public(plan) else ''}, by its number 0, 1, 2, ..."
        )
    if for_public(plan):
        items.append("`bundle.predict_graph(graph)` gives the classes of another public graph.")
    if answers_on_links(plan):
        items.append(
            "`bundle.predict(features)` with one row for every node gives their classes on the "
            "perturbed links; with another number of rows, those of newcomers without links."
        )
    elif not reads_sums(plan):
        items.append("`bundle.predict(features)` gives the class of any feature rows.")
    elif isinstance(plan.unit, Edge):
        items.append(
            "`bundle.predict(features, nodes=numbers)` answers for those nodes from other features."
        )
    elif not rows_are_own(plan):
        items.append(
            "`bundle.predict_record(features, links, node=number)` answers from one person's own "
            "features and own list of neighbours, on that person's device if need be."
        )
    else:
        items.append("Ask the owner of the data for the prediction of a node that took part.")
    items.append("Nodes are numbered as the owner numbers them; the bundle holds no identifiers.")
    return tuple(items)


def _verify() -> tuple[str, ...]:
    return (
        "`tacit inspect BUNDLE` recomputes every hash, recomputes epsilon from the noise in the "
        "plan, and checks that this card is the statement's.",
        "A bundle can prove that it is whole, not who made it. Compare the seal that `tacit "
        "inspect` prints with the one its owner published.",
        "The theorems named below are proved page by page in the folder `proofs/` of Tacit's "
        "source.",
    )
