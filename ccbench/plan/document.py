"""The keys of a PLAN.yaml and what each may say; every mistake tells what to write instead.

PLAN.yaml to a Plan: every key checked, every mistake told with its line and what to write instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, PlainValidator, ValidationError

from ccbench.collectives import read_traffic
from ccbench.documents import (
    MOST_BYTES,
    FileKind,
    FileOrigin,
    open_file,
    read_document,
    shipped_folder,
)
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import SuiteError, UsageError
from ccbench.groups import LAYOUT_AXES, make_layout, parse_layout
from ccbench.plan.computing import Efficiency
from ccbench.plan.pipeline import Gradients
from ccbench.plan.shape import ModelShape, make_shape, named_shape
from ccbench.plan.strategy import CONTEXT_KINDS, PIPELINES, RECOMPUTED, Strategy
from ccbench.suite.model import StrictModel, first_error
from ccbench.suite.readers import MisfitError, one_word, several, words
from ccbench.units import parse_duration, parse_fraction, parse_size, shown

LEAST_NUMBER, MOST_NUMBER = 1e-6, 1e9
"""Beyond these a number is a slip, and what follows from it is no number any more."""

LEAST_BUCKET_BYTES = 2**20
"""Buckets are followed one by one."""

MOST_ZERO_STAGE = 3


# -- values -------------------------------------------------------------------------------------------------


def _reads(read: Callable[[Any], Any]) -> PlainValidator:
    """A field whose value ``read`` makes; a key without a value is one that is not there."""
    return PlainValidator(lambda value: None if value is None else read(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise MisfitError(f"{shown(value)} is not a text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise MisfitError(f"{shown(value)} is neither true nor false; write one of the two")
    return value


def _whole(least: int, most: int | None = None) -> Callable[[Any], int]:
    numbers = f"from {least} on" if most is None else f"from {least} to {most}"

    def read(value: Any) -> int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value < least or (most is not None and value > most):
            raise MisfitError(f"{shown(value)} is not a whole number {numbers}")
        return int(value)

    return read


def _number(least: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value < least:
            raise MisfitError(
                f"{shown(value)} is not a number {'above' if least else 'from'} 0"
            )
        if value and not LEAST_NUMBER <= value <= MOST_NUMBER:
            raise MisfitError(
                f"{shown(value)} is out of range; write {LEAST_NUMBER:g} to {MOST_NUMBER:g}"
            )
        return float(value)

    return read


def _fraction(value: Any) -> float:
    fraction = parse_fraction(value)
    if fraction < LEAST_NUMBER:
        raise MisfitError("is 0; write such as 50%")
    return fraction


def _size(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        size = parse_size(value)
        if size < least:
            raise MisfitError(
                f"{size} bytes are too few; write {max(least >> 20, 1)} MiB or more"
            )
        return size

    return read


def _traffic(value: Any) -> str:
    try:
        return read_traffic(json.dumps(value) if isinstance(value, list) else _text(value))
    except UsageError as problem:
        raise MisfitError(str(problem).removeprefix("traffic: ")) from None


Text = Annotated[str | None, _reads(_text)]
Flag = Annotated[bool | None, _reads(_flag)]
Whole = Annotated[int | None, _reads(_whole(1))]
Wholes = Annotated[tuple[int, ...] | None, _reads(several("number", _whole(1)))]
Fraction = Annotated[float | None, _reads(_fraction)]
Duration = Annotated[float | None, _reads(parse_duration)]
Dtype = Annotated[str | None, _reads(one_word("dtype", tuple(ITEM_BYTES)))]


# -- keys ---------------------------------------------------------------------------------------------------


class OverlapKeys(StrictModel):
    """Communication that runs behind computing, by kind."""

    gradients: Flag = None
    parameters: Flag = None
    tensor: Flag = None
    experts: Flag = None
    pipeline: Flag = None


OVERLAP = BeforeValidator(
    lambda value: (
        dict.fromkeys(OverlapKeys.model_fields, value) if isinstance(value, bool) else value
    )
)
"""``overlap: true`` is every kind."""


class StrategyKeys(StrictModel):
    """Keys that a plan has for all layouts, or one of them for itself: everything of a Strategy but axes."""

    sequence: Whole = None
    global_batch: Whole = None
    micro_batch: Whole = None
    sequence_parallel: Flag = None
    zero: Annotated[int | None, _reads(_whole(0, MOST_ZERO_STAGE))] = None
    reshard: Flag = None
    pipeline: Annotated[str | None, _reads(one_word("pipeline", PIPELINES))] = None
    virtual_stages: Whole = None
    uneven_stages: Flag = None
    scatter_gather: Flag = None
    recompute: Annotated[str | None, _reads(one_word("amount of recomputing", RECOMPUTED))] = (
        None
    )
    gradient_dtype: Dtype = None
    optimizer_bytes: Whole = None
    bucket: Annotated[int | None, _reads(_size(LEAST_BUCKET_BYTES))] = None
    overlap: Annotated[OverlapKeys | None, OVERLAP] = None
    context_kind: Annotated[
        str | None, _reads(one_word("kind of context parallelism", CONTEXT_KINDS))
    ] = None
    traffic: Annotated[str | None, _reads(_traffic)] = None
    capacity: Annotated[float | None, _reads(_number(LEAST_NUMBER))] = None
    fused_attention: Flag = None
    dropout: Flag = None

    def settings(self, dtype: str) -> dict[str, Any]:
        """Arguments of a Strategy, of what the file says."""
        other_names = {"zero": "zero_stage", "bucket": "bucket_bytes"}
        taken = {
            other_names.get(name, name): getattr(self, name)
            for name in StrategyKeys.model_fields
            if name not in ("overlap", "gradient_dtype")
        }
        if self.gradient_dtype is not None:
            taken["gradient_bytes"] = ITEM_BYTES[self.gradient_dtype]
        if (
            self.virtual_stages is not None
            and self.virtual_stages > 1
            and self.pipeline is None
        ):
            taken["pipeline"] = "interleaved"
        for name, flag in self.overlap or ():
            if name != "pipeline":
                taken[f"overlap_{name}"] = flag
        taken |= {"parameter_bytes": ITEM_BYTES[dtype], "activation_bytes": ITEM_BYTES[dtype]}
        return {name: value for name, value in taken.items() if value is not None}

    @property
    def hide_pipeline(self) -> bool | None:
        """True if messages between stages run behind computing; None where the plan does not say."""
        return self.overlap.pipeline if self.overlap else None


class LayoutKeys(StrategyKeys):
    """One layout: sizes of axes, a name, and what differs from the plan."""

    tp: Whole = None
    cp: Whole = None
    ep: Whole = None
    dp: Whole = None
    pp: Whole = None
    etp: Whole = None
    order: Text = None
    name: Text = None


class SearchKeys(StrictModel):
    """Bounds of a search; of a key that is not there it tries everything that divides."""

    tp: Wholes = None
    cp: Wholes = None
    ep: Wholes = None
    pp: Wholes = None
    micro_batch: Wholes = None
    virtual_stages: Wholes = None
    zero: Annotated[
        tuple[int, ...] | None, _reads(several("stage", _whole(0, MOST_ZERO_STAGE)))
    ] = None
    recompute: Annotated[
        tuple[str, ...] | None, _reads(words("amount of recomputing", RECOMPUTED))
    ] = None


class DeviceKeys(StrictModel):
    """A device that the machine's catalog does not have, or a name of devices.yaml; None: the machine's."""

    name: Text = None
    teraflops: Annotated[float | None, _reads(_number(LEAST_NUMBER))] = None
    memory: Annotated[int | None, _reads(_size(1))] = None


class EfficiencyKeys(StrictModel):
    """Shares of the devices' rates; see Efficiency."""

    matrix: Fraction = None
    attention: Fraction = None
    memory: Fraction = None
    causal: Fraction = None
    narrow: Annotated[float | None, _reads(_number(0.0))] = None


class GradientKeys(StrictModel):
    """Gradients with stated times; see Gradients."""

    layers: Annotated[int, PlainValidator(_whole(1))]
    per_layer: Annotated[int, PlainValidator(_whole(1))]
    compute: Annotated[float, PlainValidator(parse_duration)]
    communicate: Annotated[float, PlainValidator(parse_duration)]
    startup: Duration = None
    bucket: Wholes = None


DEVICE = BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)
EFFICIENCY = BeforeValidator(
    lambda value: value if value is None or isinstance(value, dict) else {"matrix": value}
)


class PlanKeys(StrategyKeys):
    """All keys of a plan. model, layout, layouts: of several kinds, so they are read by themselves."""

    name: Text = None
    model: Any = None
    machine: Text = None
    nodes: Whole = None
    network: Text = None
    layout: Any = None
    layouts: Any = None
    search: SearchKeys | None = None
    dtype: Dtype = None
    device: Annotated[DeviceKeys | None, DEVICE] = None
    efficiency: Annotated[EfficiencyKeys | None, EFFICIENCY] = None
    scaling: Annotated[str | None, _reads(one_word("kind of scaling", ("weak", "strong")))] = (
        None
    )
    gradients: GradientKeys | None = None


PLAN_FILE = FileKind("plan", "at least model, machine, layout and global_batch")

Spot = tuple[str | int, ...]
"""The place of a value in the file."""


@dataclass(frozen=True)
class PlanChoice:
    """One way to train that a plan names: sizes of axes, and what of a Strategy differs from its defaults.

    axes: as ``make_layout`` takes them; dp may be missing, and then fills the machine. hide_pipeline: as of a
    Plan, which counts where it is None.
    """

    name: str
    axes: Mapping[str, int | str]
    settings: Mapping[str, Any]
    spot: Spot = ()
    hide_pipeline: bool | None = None

    def strategy(self, ranks: int) -> Strategy:
        """Return the strategy on so many ranks; UsageError where the numbers do not divide."""
        return Strategy(make_layout(self.axes, ranks), **self.settings)


SearchValues = Mapping[str, tuple[Any, ...]]
"""Bounds of a search, by setting; of one that is not named it tries everything that divides."""


@dataclass(frozen=True)
class TrainingPlan:
    """Contents of a PLAN.yaml.

    choices: one for ``layout``, several for ``layouts``, none where layouts are searched or ``gradients`` is
    all. settings: of a Strategy, for every choice. search_values: of a search, None where there is none.
    hide_pipeline: whether messages between stages run behind computing, None: as the schedule's usual code
    does. dtype_stated: whether the plan says it; else it is bfloat16, or float16 on devices without it.
    """

    name: str
    shape: ModelShape | None
    machine: str | None
    nodes: int | None
    network: str | None
    choices: tuple[PlanChoice, ...]
    settings: Mapping[str, Any]
    search_values: SearchValues | None
    device: DeviceKeys
    efficiency: Efficiency
    hide_pipeline: bool | None
    scaling: str
    gradients: Gradients | None
    dtype: str = "bfloat16"
    dtype_stated: bool = False
    origin: FileOrigin = field(default_factory=FileOrigin)


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
    dtype = keys.dtype or "bfloat16"
    settings = keys.settings(dtype)
    gradients = _gradients(keys, tree, origin)
    choices = _choices(keys, settings, dtype, origin)
    name = keys.name or name
    shape = None if gradients is not None else _shape(keys.model, name, origin)
    if shape is not None:
        for key, example in (("global_batch", 1024), ("sequence", 4096)):
            # Each layout may have its own, else all need one.
            if key not in settings and not (
                choices and all(key in choice.settings for choice in choices)
            ):
                raise origin.error((key,), f"is missing; write such as '{key}: {example}'")
        # Without experts no tokens go among them.
        places = [((), settings), *((choice.spot, choice.settings) for choice in choices)]
        for (spot, values_of_place), key in product(
            () if shape.experts else places, ("traffic", "capacity")
        ):
            if values_of_place.get(key):
                raise origin.error(
                    (*spot, key),
                    "is of tokens among experts, and the model has none; leave it out",
                )
    searches = keys.search is not None or keys.layout == "search"
    search_values = {name: values for name, values in keys.search or () if values}
    efficiency = {name: share for name, share in keys.efficiency or () if share is not None}
    return TrainingPlan(
        name=name,
        shape=shape,
        machine=keys.machine,
        nodes=keys.nodes,
        network=keys.network,
        choices=choices,
        settings=settings,
        search_values=search_values if searches else None,
        device=keys.device or DeviceKeys(),
        efficiency=Efficiency(**efficiency),
        hide_pipeline=keys.hide_pipeline,
        scaling=keys.scaling or "weak",
        gradients=gradients,
        dtype=dtype,
        dtype_stated=keys.dtype is not None,
        origin=origin,
    )


Keys = TypeVar("Keys", bound=StrictModel)


def _checked(model: type[Keys], value: Any, spot: Spot, origin: FileOrigin) -> Keys:
    try:
        return model.model_validate(value)
    except ValidationError as problem:
        raise first_error(problem, origin, spot) from None


def _shape(value: Any, name: str, origin: FileOrigin) -> ModelShape:
    if value is None:
        raise origin.error(
            ("model",),
            "is missing; write a name such as gpt3-175b, or layers, hidden, heads, ...",
        )
    try:
        return (
            make_shape({"name": name, **value})
            if isinstance(value, dict)
            else named_shape(str(value))
        )
    except UsageError as problem:
        key = str(problem).split()[1].strip("'") if isinstance(value, dict) else ""
        spot = ("model", key) if isinstance(value, dict) and key in value else ("model",)
        raise origin.error(spot, str(problem).removeprefix("shape: ")) from None


def _gradients(keys: PlanKeys, tree: Mapping[str, Any], origin: FileOrigin) -> Gradients | None:
    """Return ``gradients`` with stated times; a plan of them needs no machine, and nothing else counts."""
    times = keys.gradients
    if times is None:
        return None
    for key in tree:
        if key not in ("name", "gradients"):
            problem = "beside gradients, whose stated times need nothing else; leave it out"
            raise origin.error((key,), problem)
    made = Gradients(
        times.layers,
        times.per_layer,
        times.compute,
        times.communicate,
        times.startup,
        times.bucket or (),
    )
    try:
        made.check()
    except UsageError as problem:
        raise origin.error(("gradients",), str(problem)) from None
    return made


def _choices(
    keys: PlanKeys, settings: Mapping[str, Any], dtype: str, origin: FileOrigin
) -> tuple[PlanChoice, ...]:
    single, several = keys.layout, keys.layouts
    if single is not None and several is not None:
        raise origin.error(("layouts",), "beside layout; write one of the two")
    if several is None:
        return (
            ()
            if single in (None, "search")
            else (_choice(single, ("layout",), settings, dtype, origin),)
        )
    if not isinstance(several, list) or not several:
        raise origin.error(
            ("layouts",), f"{shown(several)} is not a list; write '- {{tp: 8, pp: 2}}' lines"
        )
    by_name: dict[str, PlanChoice] = {}
    for place, item in enumerate(several):
        choice = _choice(item, ("layouts", place), settings, dtype, origin)
        if choice.name in by_name:
            # Of layouts of one name nobody could tell which one a line of a table is of.
            problem = (
                f"has the name of an earlier one, {shown(choice.name)}; write another 'name:'"
            )
            raise origin.error(choice.spot, problem)
        by_name[choice.name] = choice
    return tuple(by_name.values())


def _choice(
    value: Any, spot: Spot, settings: Mapping[str, Any], dtype: str, origin: FileOrigin
) -> PlanChoice:
    axes: dict[str, int | str]
    if isinstance(value, str):
        try:
            layout = parse_layout(value)
        except UsageError as problem:
            search = " or search" if spot == ("layout",) and value.isalpha() else ""
            raise origin.error(spot, str(problem).removeprefix("layout: ") + search) from None
        axes = {axis: getattr(layout, axis) for axis in LAYOUT_AXES} | {"order": layout.order}
        # Where dp is left out, it fills the machine.
        if "dp" not in value:
            del axes["dp"]
        if layout.etp:
            axes["etp"] = layout.etp
        return PlanChoice(value, axes, settings, spot)
    if not isinstance(value, dict):
        raise origin.error(
            spot, f"{shown(value)} is not a layout; write {{tp: 8, pp: 2}} or search"
        )
    keys = _checked(LayoutKeys, value, spot, origin)
    sizes = {
        axis: getattr(keys, axis)
        for axis in (*LAYOUT_AXES, "etp")
        if getattr(keys, axis) is not None
    }
    axes = {**sizes, **({"order": keys.order} if keys.order is not None else {})}
    label = [
        "-".join(f"{axis}{size}" for axis, size in sizes.items()) or "dp",
        *([f"order {keys.order}"] if keys.order else []),
        *(f"{key} {str(value[key])[:30]}" for key in StrategyKeys.model_fields if key in value),
    ]
    # What one layout says comes after what the plan says for all.
    own = {**settings, **keys.settings(dtype)}
    return PlanChoice(keys.name or ", ".join(label), axes, own, spot, keys.hide_pipeline)
