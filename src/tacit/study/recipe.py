"""A recipe: everything about a run but its data and seed, in words a command line can take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_type_hints

from tacit.errors import PlanError

if TYPE_CHECKING:
    from tacit.graph import Cut
    from tacit.methods import Method
    from tacit.privacy import Unit

RelationName = Literal["add-remove", "replace"]
AccountingName = Literal["sound", "paper"]
NoiseName = Literal["secure", "seeded"]

DELTA = {"edge": 1e-6, "node": 1e-5, "node-all": 1e-5, "k-neighbours": 1e-5}
"""Delta where nobody gives one: public numbers, printed wherever they are used."""

UNIT_SETTINGS = frozenset({"max_degree", "k"})
"""Settings that belong to the unit of privacy and not to the method."""

CUT_SETTINGS = ("private_nodes", "public_train", "public_test")
"""Settings that cut one file into a private and a public graph, for methods that learn for one."""


@dataclass(frozen=True)
class Recipe:
    """What to run, under which promise.

    Attributes:
        method: Name of the method.
        unit: Name of the unit of privacy.
        epsilon: The budget; infinity for none.
        delta: The budget's delta.
        relation: Which inputs count as neighbours.
        accounting: ``sound`` or ``paper``.
        noise: ``secure`` or ``seeded``.
        settings: The user's choices by name, sorted; ``preset``, ``max_degree``, ``k`` and the
            sizes of a cut among them.
    """

    method: str
    unit: str
    epsilon: float
    delta: float
    relation: str = "add-remove"
    accounting: str = "sound"
    noise: str = "secure"
    settings: tuple[tuple[str, Any], ...] = ()

    def privacy_unit(self) -> Unit:
        """The unit as an object.

        Raises:
            PlanError: A degree bound was given for a unit that has none.
        """
        from tacit.privacy import Edge, KNeighbors, Node

        degree, k = dict(self.settings).get("max_degree"), dict(self.settings).get("k")
        relation = cast(RelationName, self.relation)
        if k is not None and self.unit != "k-neighbours":
            raise PlanError(
                f"k has no meaning under the unit {self.unit}",
                why="it says how many of a node's links change with it",
                remedy="leave it out, or use the unit k-neighbours",
            )
        if self.unit in ("edge", "k-neighbours"):
            if degree is not None:
                raise PlanError(
                    f"max_degree has no meaning under the unit {self.unit}",
                    why="it bounds what one node's whole list can do",
                    remedy="leave it out, or use the unit node or node-all",
                )
            if self.unit == "edge":
                return Edge(relation=relation)
            return KNeighbors(relation=relation, k=1 if k is None else k)
        if self.unit not in DELTA:
            raise PlanError(f"unknown unit {self.unit!r}", remedy=f"one of {', '.join(DELTA)}")
        links: Literal["own", "all"] = "own" if self.unit == "node" else "all"
        return Node(relation=relation, links=links, max_degree=degree)

    @property
    def cut(self) -> Cut | None:
        """How one file is cut into a private and a public graph, if it is.

        Raises:
            PlanError: Some of the three sizes are missing.
        """
        from tacit.graph import Cut

        given = {key: value for key, value in self.settings if key in CUT_SETTINGS}
        if not given:
            return None
        if len(given) < len(CUT_SETTINGS):
            missing = ", ".join(key for key in CUT_SETTINGS if key not in given)
            raise PlanError(
                f"a cut needs three sizes: {missing} is missing",
                remedy=f"give {', '.join(f'--set {key}=N' for key in CUT_SETTINGS)}",
            )
        return Cut(**given)

    def model(self, seed: int) -> Method:
        """The method, unfitted.

        Args:
            seed: Of weights and order.
        """
        from tacit.methods import METHODS

        others = UNIT_SETTINGS | {"preset", *CUT_SETTINGS}
        chosen = {k: v for k, v in self.settings if k not in others}
        return METHODS[self.method](
            self.privacy_unit(),
            self.epsilon,
            self.delta,
            preset=dict(self.settings).get("preset", "tacit"),
            overrides=chosen,
            accounting=self.accounting,
            seed=seed,
            noise=self.noise,
        )

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """The same recipe with these settings instead."""
        return replace(self, settings=tuple(sorted(settings.items())))

    def __str__(self) -> str:
        parts = [f"{self.method} {self.unit} epsilon={number(self.epsilon)}"]
        if self.relation != "add-remove":
            parts.append(self.relation)
        if self.accounting != "sound":
            parts.append(f"{self.accounting} accounting")
        if self.noise != "secure":
            parts.append(f"{self.noise} noise")
        return " ".join([*parts, *(f"{key}={value}" for key, value in self.settings)])


def setting_types(method: str) -> dict[str, Any]:
    """The type of every setting of a method, with ``preset`` and those of units and cuts."""
    from tacit.methods import CATALOGUE, SETTINGS

    types = get_type_hints(SETTINGS[method])
    if CATALOGUE[method].public:
        types |= dict.fromkeys(CUT_SETTINGS, int)
    return {**types, "max_degree": int, "k": int, "preset": Literal["tacit", "paper"]}


def typed_settings(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a user wrote them, turned into the types that the method declares.

    Args:
        method: The method's name.
        given: Values by name; text is read as the declared type.

    Returns:
        The same names with typed values.

    Raises:
        PlanError: The method has no such setting, or the value is not of its type.
    """
    types = setting_types(method)
    return {key: _typed(method, types, key, value) for key, value in given.items()}


def _typed(method: str, types: Mapping[str, Any], key: str, value: Any) -> Any:
    from pydantic import TypeAdapter, ValidationError

    if key not in types:
        raise PlanError(
            f"{method} has no setting {key!r}", remedy=f"choose from {', '.join(sorted(types))}"
        )
    try:
        return TypeAdapter(types[key]).validate_python(value)
    except ValidationError as error:
        raise PlanError(
            f"{key}={value} is not a setting of {method}",
            why=f"it should be {_type_words(types[key])}",
        ) from error


def _type_words(kind: Any) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    return words.get(kind) or "one of " + ", ".join(str(choice) for choice in get_args(kind))


def number(value: float) -> str:
    """A number as short as it can be read back, ``inf`` for infinity."""
    return "inf" if math.isinf(value) else f"{value:g}"


def parse_split(text: str) -> tuple[float, float, float]:
    """Shares of training, validation and test nodes from ``75/10/15``.

    Raises:
        PlanError: The text is not three numbers.
    """
    try:
        train, val, test = (float(part) for part in text.split("/"))
    except ValueError as error:
        raise PlanError(
            f"{text!r} is not a split", remedy="write three shares: 75/10/15"
        ) from error
    return train, val, test
