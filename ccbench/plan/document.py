"""PLAN.yaml to a TrainingPlan: every key checked, every mistake with its line and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ccbench.documents import (
    MOST_BYTES,
    FileKind,
    FileOrigin,
    open_file,
    read_document,
    shipped_folder,
)
from ccbench.errors import SuiteError, UsageError
from ccbench.plan.shape import ModelShape, named_shape, with_defaults
from ccbench.plan.strategy import LayoutKeys, StepSettings, Whole
from ccbench.suite.model import StrictModel, first_error
from ccbench.units import shown


class PlanKeys(StepSettings):
    """All keys of a plan. model, layout, layouts: of several kinds, so they are read by themselves."""

    name: str = ""
    model: Any = None
    machine: str = ""
    nodes: Whole = 0
    network: str = ""
    layout: Any = None
    layouts: Any = None


PLAN_FILE = FileKind("plan", "at least model, machine, layout, global_batch and sequence")

Spot = tuple[str | int, ...]
"""The place of a value in the file."""


@dataclass(frozen=True)
class TrainingPlan:
    """Contents of a PLAN.yaml: a model, its layouts by name with their places, a machine."""

    keys: PlanKeys
    shape: ModelShape
    layouts: Mapping[str, tuple[Spot, LayoutKeys]]
    origin: FileOrigin


def shipped_plans() -> dict[str, Path]:
    """Name to file of every plan that ships, by name."""
    return {
        path.stem: path for path in sorted((shipped_folder("suites") / "plans").glob("*.yaml"))
    }


def load_plan(path: Path | str) -> TrainingPlan:
    """Return the plan of a file, or the one that ships under this name; SuiteError with file and line."""
    path = Path(path)
    if not path.is_file():
        path = shipped_plans().get(str(path), path)
    try:
        with open_file(path) as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "is no file name"
        raise SuiteError(
            f"{path}: cannot be read ({reason}); name the file of a plan, or one that ships: "
            f"{', '.join(shipped_plans())}"
        ) from None
    return read_plan(content, str(path), path.stem)


def read_plan(content: bytes | str, place: str = "plan", name: str = "plan") -> TrainingPlan:
    """Return the plan of YAML text; ``place`` begins every error, ``name`` is its name where it says none."""
    encoded = content.encode() if isinstance(content, str) else content
    document = read_document(encoded, place, PLAN_FILE)
    origin, tree = document.origin, document.tree
    keys = _checked(PlanKeys, tree, (), origin)
    shape = _shape(keys.model, keys.name or name, origin)
    settings = {key: value for key, value in tree.items() if key in StepSettings.model_fields}
    layouts: dict[str, tuple[Spot, LayoutKeys]] = {}
    for spot, value in _places(keys, origin):
        label, layout = _layout(value, spot, settings, origin)
        if label in layouts:
            # Of layouts of one name nobody could tell which one a table is of.
            problem = f"has the name of an earlier one, {shown(label)}; write another 'name:'"
            raise origin.error(spot, problem)
        layouts[label] = spot, layout
    return TrainingPlan(keys, shape, layouts, origin)


Keys = TypeVar("Keys", bound=StrictModel)


def _checked(model: type[Keys], value: Any, spot: Spot, origin: FileOrigin) -> Keys:
    try:
        return model.model_validate(value)
    except ValidationError as problem:
        raise first_error(problem, origin, spot) from None


def _shape(value: Any, name: str, origin: FileOrigin) -> ModelShape:
    if isinstance(value, dict):
        return _checked(ModelShape, with_defaults({"name": name, **value}), ("model",), origin)
    if value is None:
        problem = "is missing; write a name such as gpt3-175b, or layers, hidden, heads, ..."
        raise origin.error(("model",), problem)
    try:
        return named_shape(str(value))
    except UsageError as problem:
        raise origin.error(("model",), str(problem)) from None


def _places(keys: PlanKeys, origin: FileOrigin) -> list[tuple[Spot, Any]]:
    if keys.layout is not None and keys.layouts is not None:
        raise origin.error(("layouts",), "beside layout; write one of the two")
    if keys.layout is not None:
        return [(("layout",), keys.layout)]
    if keys.layouts is None:
        raise origin.error(("layout",), "is missing; write such as 'layout: {tp: 8, pp: 2}'")
    if not isinstance(keys.layouts, list) or not keys.layouts:
        problem = f"{shown(keys.layouts)} is not a list; write '- {{tp: 8, pp: 2}}' lines"
        raise origin.error(("layouts",), problem)
    return [(("layouts", place), value) for place, value in enumerate(keys.layouts)]


def _layout(
    value: Any, spot: Spot, settings: Mapping[str, Any], origin: FileOrigin
) -> tuple[str, LayoutKeys]:
    """(name, keys) of one layout; what it says comes after what the plan says for all."""
    if isinstance(value, str) and re.fullmatch(r"[a-z]+\d+(-[a-z]+\d+)*", value):
        sizes = re.findall(r"([a-z]+)(\d+)", value)
        order = "-".join(axis for axis, _ in sizes if axis != "etp")
        value = {**{axis: int(size) for axis, size in sizes}, "order": order, "name": value}
    if not isinstance(value, dict):
        raise origin.error(spot, f"{shown(value)} is not a layout; write {{tp: 8, pp: 2}}")
    keys = _checked(LayoutKeys, {**settings, **value}, spot, origin)
    return keys.name or ", ".join(f"{key} {str(of)[:30]}" for key, of in value.items()), keys
