"""The run folder: everything a fit left behind, for its owner's eyes.

``run.json`` holds plan, statement and metrics; ``tensors.safetensors`` the arrays. Both are
private: what may leave is written by :mod:`tacit.release`.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from tacit.errors import PlanError
from tacit.graph import PublicFacts
from tacit.methods.base import Fitted, Method, Outcome
from tacit.privacy.accounting import Cost
from tacit.privacy.plan import Plan, Stage, unit_from_dict
from tacit.privacy.statement import Statement

FORMAT = 1
RUN_FILE = "run.json"
TENSORS_FILE = "tensors.safetensors"


def save_run(model: Method, folder: str | Path) -> Path:
    """Write a fitted model to a folder, the description last, so that a torn write is no run.

    Args:
        model: A fitted method.
        folder: Created if it does not exist.

    Returns:
        The folder.
    """
    from safetensors.numpy import save_file

    fitted, path = model.fitted, Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    arrays = {f"weights/{k}": v for k, v in fitted.outcome.weights.items()}
    arrays |= {f"released/{k}": v for k, v in fitted.outcome.released.items()}
    arrays["posteriors"] = fitted.outcome.posteriors
    save_file({k: np.asarray(v, order="C") for k, v in arrays.items()}, path / TENSORS_FILE)
    description = {
        "format": FORMAT,
        "method": fitted.plan.method,
        "plan": fitted.plan.to_dict(),
        "statement": fitted.statement.to_dict(),
        "metrics": fitted.metrics,
        "run": fitted.run,
        "data": fitted.data,
        "seconds": fitted.seconds,
        "seed": fitted.seed,
        "noise": model.noise,
        "classes": fitted.classes,
        "public_posteriors": fitted.outcome.public_posteriors,
        "notes": fitted.outcome.notes,
        "private": "This folder is private. Use 'tacit release' to make what may leave.",
    }
    part = path / f"{RUN_FILE}.part"
    part.write_text(json.dumps(description, indent=2, allow_nan=False) + "\n")
    part.replace(path / RUN_FILE)
    return path


def load_run(folder: str | Path) -> Method:
    """The fitted model that :func:`save_run` wrote.

    Raises:
        PlanError: The folder holds no finished run.
    """
    from safetensors.numpy import load_file

    path = Path(folder)
    try:
        data = json.loads((path / RUN_FILE).read_text())
        arrays = load_file(path / TENSORS_FILE)
    except (OSError, ValueError) as error:
        raise PlanError(
            f"{path} holds no finished run", why=str(error), remedy="name a folder made by fit"
        ) from error
    if data.get("format") != FORMAT:
        raise PlanError(
            f"{path} was written in format {data.get('format')}, not {FORMAT}",
            remedy="load it with the version of Tacit that wrote it",
        )
    plan = plan_from_dict(data["plan"])
    outcome = Outcome(
        posteriors=arrays["posteriors"],
        released=_under(arrays, "released/"),
        weights=_under(arrays, "weights/"),
        public_posteriors=data["public_posteriors"],
        notes=tuple(data["notes"]),
    )
    fitted = Fitted(
        plan=plan,
        statement=Statement.from_dict(data["statement"]),
        outcome=outcome,
        metrics=data["metrics"],
        run=data["run"],
        data=data["data"],
        seconds=data["seconds"],
        seed=data["seed"],
        classes=None if data["classes"] is None else tuple(data["classes"]),
    )
    return rebuilt(plan, seed=data["seed"], noise=data["noise"]).restore(fitted)


def rebuilt(plan: Plan, *, seed: int, noise: Any) -> Method:
    """An unfitted method that makes this very plan."""
    from tacit.methods import METHODS

    chosen = asdict(plan.settings)
    preset = chosen.pop("preset", "tacit")
    return METHODS[plan.method](
        plan.unit,
        plan.epsilon,
        plan.delta,
        preset=preset,
        overrides=chosen,
        accounting=plan.accounting,
        seed=seed,
        noise=noise,
    )


def plan_from_dict(data: dict[str, Any]) -> Plan:
    """The plan that ``Plan.to_dict`` wrote."""
    from tacit.methods import SETTINGS

    settings = SETTINGS.get(str(data.get("method")))
    if settings is None:
        raise PlanError(f"unknown method {data.get('method')!r}")
    return Plan(
        method=data["method"],
        unit=unit_from_dict(data["unit"]),
        facts=PublicFacts(**data["facts"]),
        epsilon=_number(data["epsilon"]),
        delta=data["delta"],
        accounting=data["accounting"],
        stages=_stages(data["stages"]),
        settings=settings(**data["settings"]),
        cost=Cost(**{k: _number(v) for k, v in data["cost"].items()}),
        charged=_stages(data["charged"]),
    )


def _stages(rows: list[dict[str, Any]]) -> tuple[Stage, ...]:
    known = {field.name for field in fields(Stage)}
    return tuple(Stage(**{k: v for k, v in row.items() if k in known}) for row in rows)


def _number(value: Any) -> float:
    return math.inf if value == "inf" else float(value)


def _under(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
