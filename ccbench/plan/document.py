"""PLAN.yaml to a TrainingPlan: every key checked, every mistake with its line and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError

from ccbench.documents import (
    MOST_BYTES,
    FileKind,
    FileOrigin,
    open_file,
    read_document,
    shipped_folder,
)
from ccbench.errors import SuiteError
from ccbench.plan.shape import ModelShape, named_shape, with_defaults
from ccbench.plan.strategy import LayoutKeys, StepSettings, Whole
from ccbench.suite.model import first_error
from ccbench.suite.readers import read_at


def _model(value: Any) -> Any:
    """The numbers of a model, or the model of a name."""
    if isinstance(value, dict):
        return with_defaults(value)
    return read_at((), named_shape, str(value))


class PlanKeys(StepSettings):
    """All keys of a plan."""

    model: Annotated[ModelShape, BeforeValidator(_model)]
    layout: LayoutKeys
    global_batch: Whole
    sequence: Whole
    machine: str = ""
    nodes: Whole = 0
    network: str = ""


PLAN_FILE = FileKind("plan", "at least model, machine, layout, global_batch and sequence")


@dataclass(frozen=True)
class TrainingPlan:
    """Contents of a PLAN.yaml: a model, a layout, a machine."""

    keys: PlanKeys
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
    return read_plan(content, str(path))


def read_plan(content: bytes | str, place: str = "plan") -> TrainingPlan:
    """Return the plan of YAML text; ``place`` begins every error."""
    encoded = content.encode() if isinstance(content, str) else content
    document = read_document(encoded, place, PLAN_FILE)
    try:
        keys = PlanKeys.model_validate(document.tree)
    except ValidationError as problem:
        raise first_error(problem, document.origin) from None
    return TrainingPlan(keys, document.origin)
