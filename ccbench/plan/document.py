"""PLAN.yaml to a Plan: every key checked, every mistake told with its line and what to write instead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ccbench.collectives import read_traffic
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import SuiteError, UsageError
from ccbench.groups import LAYOUT_AXES, make_layout, parse_layout
from ccbench.plan.computing import Efficiency
from ccbench.plan.keys import Keys, Spot
from ccbench.plan.shape import ModelShape, make_shape, named_shape
from ccbench.plan.strategy import CONTEXT_KINDS, PIPELINES, RECOMPUTED, Strategy
from ccbench.plan.textbook import Gradients
from ccbench.resources import shipped_folder
from ccbench.suite.document import MOST_BYTES, FileKind, Origin, read_document
from ccbench.units import shown

SCALINGS = ("weak", "strong")

LEAST_BUCKET_BYTES = 2**20
"""Buckets are followed one by one."""

PLAN_FILE = FileKind("plan", "at least model, machine, layout and global_batch")


@dataclass(frozen=True)
class Choice:
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
        """On so many ranks; UsageError where the numbers do not divide."""
        return Strategy(make_layout(self.axes, ranks), **self.settings)


@dataclass(frozen=True)
class Wanted:
    """What a search keeps to, by setting; of one that is not named it tries everything that divides."""

    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stated:
    """What a plan says about its devices: None leaves it to the machine. name: of devices.yaml."""

    name: str | None = None
    teraflops: float | None = None
    memory_bytes: int | None = None
    efficiency: Efficiency = field(default_factory=Efficiency)


@dataclass(frozen=True)
class Plan:
    """Everything a PLAN.yaml says.

    choices: one for ``layout``, several for ``layouts``, none where layouts are searched or ``gradients`` is
    all. settings: of a Strategy, for every choice. wanted: of a search, None where there is none.
    hide_pipeline: whether messages between stages run behind computing, None: as the schedule's usual code
    does. dtype_stated: whether the plan says it; else it is bfloat16, or float16 on devices without it.
    """

    name: str
    shape: ModelShape | None
    machine: str | None
    nodes: int | None
    network: str | None
    choices: tuple[Choice, ...]
    settings: Mapping[str, Any]
    wanted: Wanted | None
    device: Stated
    hide_pipeline: bool | None
    scaling: str
    gradients: Gradients | None
    dtype: str = "bfloat16"
    dtype_stated: bool = False
    origin: Origin = field(default_factory=Origin)


def shipped_plans() -> dict[str, Path]:
    """Name to file of every plan that ships, by name."""
    return {path.stem: path for path in sorted((shipped_folder("suites") / "plans").glob("*.yaml"))}


def load_plan(path: Path | str) -> Plan:
    """The plan of a file, or the one that ships under this name. Raises SuiteError with file and line."""
    path = Path(path)
    if not path.is_file():
        path = shipped_plans().get(str(path), path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "is no file name"
        raise SuiteError(
            f"{path}: cannot be read ({reason}); name the file of a plan, or one that ships: "
            f"{', '.join(shipped_plans())}"
        ) from None
    return read_plan(content, str(path), path.stem)


def read_plan(content: bytes | str, place: str = "plan", name: str = "plan") -> Plan:
    """The plan of YAML text; ``place`` begins every error, ``name`` is its name where it does not say one."""
    encoded = content.encode() if isinstance(content, str) else content
    document = read_document(encoded, place, PLAN_FILE)
    if not isinstance(document.tree, dict):
        raise SuiteError(
            f"{place}:1: {shown(document.tree)} is no plan; write keys such as 'model: gpt3-175b'"
        )
    return _Reader(document.tree, document.origin).plan(name)


class _Reader:
    """Takes keys out of the tree; what is left at the end is unknown."""

    def __init__(self, tree: dict[str, Any], origin: Origin) -> None:
        self.tree = tree
        self.origin = origin

    def plan(self, name: str) -> Plan:
        top = Keys(self.tree, (), self.origin, TOP_KEYS)
        gradients = self.gradients(top)
        if gradients is not None:
            self.refuse_beside_gradients(top)
        dtype = top.word("dtype", tuple(ITEM_BYTES)) or "bfloat16"
        settings, hide = strategy_settings(top, dtype)
        choices, wanted = self.choices(top, settings, dtype)
        named = top.text("name") or name
        shape = None if gradients is not None else self.shape(top, named)
        if gradients is None:
            self.check_settings(top, choices, settings)
        if shape is not None and not shape.experts:
            self.refuse_traffic(choices, settings)
        plan = Plan(
            name=named,
            shape=shape,
            machine=top.text("machine"),
            nodes=top.whole("nodes"),
            network=top.text("network"),
            choices=choices,
            settings=settings,
            wanted=wanted,
            device=self.device(top),
            hide_pipeline=hide,
            scaling=top.word("scaling", SCALINGS) or "weak",
            gradients=gradients,
            dtype=dtype,
            dtype_stated=top.take("dtype") is not None,
            origin=self.origin,
        )
        top.refuse_unknown()
        return plan

    def shape(self, top: Keys, name: str) -> ModelShape:
        value = top.take("model")
        if value is None:
            raise top.error(
                "model", "is missing; write a name such as gpt3-175b, or layers, hidden, heads, ..."
            )
        try:
            if isinstance(value, dict):
                return make_shape({"name": name, **value})
            return named_shape(str(value))
        except UsageError as problem:
            key = str(problem).split()[1].strip("'") if isinstance(value, dict) else ""
            spot = ("model", key) if isinstance(value, dict) and key in value else ("model",)
            raise self.origin.error(spot, str(problem).removeprefix("shape: ")) from None

    def gradients(self, top: Keys) -> Gradients | None:
        """``gradients:`` with stated times; a plan of them needs no machine."""
        value = top.take("gradients")
        if value is None:
            return None
        keys = Keys(
            top.mapping(value, "gradients"),
            ("gradients",),
            self.origin,
            ("layers", "per_layer", "compute", "communicate", "startup", "bucket"),
        )
        needed = {name: keys.whole(name) for name in ("layers", "per_layer")}
        times = {name: keys.duration(name) for name in ("compute", "communicate")}
        for name, number in {**needed, **times}.items():
            if number is None:
                raise keys.error(name, "is missing; write layers, per_layer, compute and communicate")
        buckets = tuple(keys.wholes("bucket"))
        made = Gradients(
            layers=int(needed["layers"] or 0),
            per_layer=int(needed["per_layer"] or 0),
            compute_seconds=float(times["compute"] or 0.0),
            communicate_seconds=float(times["communicate"] or 0.0),
            startup_seconds=keys.duration("startup"),
            buckets=buckets,
        )
        keys.refuse_unknown()
        try:
            made.check()
        except UsageError as problem:
            raise self.origin.error(("gradients",), str(problem)) from None
        return made

    def refuse_beside_gradients(self, top: Keys) -> None:
        """Of what a plan of stated times would pass over."""
        for key in self.tree:
            if key in TOP_KEYS and key not in ("name", "gradients"):
                raise top.error(key, "beside gradients, whose stated times need nothing else; leave it out")

    def choices(
        self, top: Keys, settings: dict[str, Any], dtype: str
    ) -> tuple[tuple[Choice, ...], Wanted | None]:
        one, several, wanted = top.take("layout"), top.take("layouts"), top.take("search")
        if one is not None and several is not None:
            raise top.error("layouts", "beside layout; write one of the two")
        if several is not None:
            if not isinstance(several, list) or not several:
                raise top.error("layouts", f"{shown(several)} is no list; write '- {{tp: 8, pp: 2}}' lines")
            found = [
                self.choice(item, ("layouts", place), settings, dtype) for place, item in enumerate(several)
            ]
            self.refuse_names_twice(found)
            return tuple(found), self.wanted(wanted)
        if one == "search" or (one is None and wanted is not None):
            return (), self.wanted({} if wanted is None else wanted)
        if one is None:
            return (), None
        return (self.choice(one, ("layout",), settings, dtype),), self.wanted(wanted)

    def refuse_names_twice(self, found: list[Choice]) -> None:
        """Of layouts of one name nobody could tell which one a line of a table is of."""
        for place, one in enumerate(found):
            if any(one.name == earlier.name for earlier in found[:place]):
                problem = f"has the name of an earlier one, {shown(one.name)}; write another 'name:'"
                raise self.origin.error(one.spot, problem)

    def choice(self, value: Any, spot: Spot, settings: dict[str, Any], dtype: str) -> Choice:
        if isinstance(value, str):
            return Choice(value, self.written_axes(value, spot), settings, spot)
        if not isinstance(value, dict):
            raise self.origin.error(spot, f"{shown(value)} is no layout; write {{tp: 8, pp: 2}} or search")
        keys = Keys(value, spot, self.origin, (*AXIS_KEYS, "name", *STRATEGY_KEYS))
        name = keys.text("name")
        axes: dict[str, int | str] = {}
        for axis in (*LAYOUT_AXES, "etp"):
            number = keys.whole(axis)
            if number is not None:
                axes[axis] = number
        order = keys.text("order")
        if order is not None:
            axes["order"] = order
        # What one layout says comes after what the plan says for all.
        own, hide = strategy_settings(keys, dtype)
        keys.refuse_unknown()
        sizes = "-".join(f"{axis}{size}" for axis, size in axes.items() if axis != "order") or "dp"
        differs = [f"{key} {str(value[key])[:30]}" for key in STRATEGY_KEYS if key in value]
        label = name or ", ".join([sizes, *([f"order {order}"] if order else []), *differs])
        return Choice(label, axes, {**settings, **own}, spot, hide)

    def written_axes(self, text: str, spot: Spot) -> dict[str, int | str]:
        """Axes of a layout in one word; dp, where it is left out, fills the machine."""
        try:
            layout = parse_layout(text)
        except UsageError as problem:
            search = " or search" if spot == ("layout",) and text.isalpha() else ""
            raise self.origin.error(spot, str(problem).removeprefix("layout: ") + search) from None
        axes: dict[str, int | str] = {axis: getattr(layout, axis) for axis in LAYOUT_AXES}
        if "dp" not in text:
            del axes["dp"]
        if layout.etp:
            axes["etp"] = layout.etp
        return {**axes, "order": layout.order}

    def wanted(self, value: Any) -> Wanted | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.origin.error(
                ("search",), f"{shown(value)} is no mapping; write tp: [1, 2, 4, 8] and so on"
            )
        keys = Keys(value, ("search",), self.origin, tuple(SEARCHED))
        found: dict[str, tuple[Any, ...]] = {}
        for name, words in SEARCHED.items():
            least, most = (0, 3) if name == "zero" else (1, None)
            given = keys.words(name, words) if words else keys.wholes(name, least, most)
            if keys.take(name) == []:
                raise keys.error(name, "names nothing to keep to; write what, or leave it out")
            if given:
                found[name] = tuple(dict.fromkeys(given))
        keys.refuse_unknown()
        return Wanted(found)

    def device(self, top: Keys) -> Stated:
        value = top.take("device")
        efficiency = self.efficiency(top)
        if value is None or isinstance(value, str):
            return Stated(name=value, efficiency=efficiency)
        known = ("name", "teraflops", "memory")
        keys = Keys(top.mapping(value, "device"), ("device",), self.origin, known)
        stated = Stated(keys.text("name"), keys.number("teraflops"), keys.size("memory"), efficiency)
        keys.refuse_unknown()
        return stated

    def efficiency(self, top: Keys) -> Efficiency:
        """A share of the best product's rate, or several shares by name."""
        value = top.take("efficiency")
        if value is None:
            return Efficiency()
        if not isinstance(value, dict):
            return Efficiency(matrix=float(top.fraction("efficiency") or 1.0))
        names = tuple(one.name for one in fields(Efficiency))
        keys = Keys(value, ("efficiency",), self.origin, names)
        stated = {name: keys.fraction(name) for name in names if name != "narrow"}
        stated["narrow"] = keys.number("narrow", or_nothing=True)
        keys.refuse_unknown()
        return Efficiency(**{name: share for name, share in stated.items() if share is not None})

    def check_settings(self, top: Keys, choices: tuple[Choice, ...], settings: dict[str, Any]) -> None:
        for key in ("global_batch", "sequence"):
            if key not in settings and not (choices and all(key in one.settings for one in choices)):
                raise top.error(key, f"is missing; write such as '{key}: {1024 if 'b' in key else 4096}'")

    def refuse_traffic(self, choices: tuple[Choice, ...], settings: dict[str, Any]) -> None:
        """Of tokens among experts, where there are none."""
        for spot, given in ((), settings), *((one.spot, one.settings) for one in choices):
            for key in ("traffic", "capacity"):
                if given.get(key):
                    problem = "is of tokens among experts, and the model has none; leave it out"
                    raise self.origin.error((*spot, key), problem)


AXIS_KEYS = (*LAYOUT_AXES, "etp", "order")

STRATEGY_KEYS = (
    "sequence", "global_batch", "micro_batch", "sequence_parallel", "zero", "reshard", "pipeline",
    "virtual_stages", "uneven_stages", "scatter_gather", "recompute", "gradient_dtype", "optimizer_bytes",
    "bucket", "overlap", "context_kind", "traffic", "capacity", "fused_attention", "dropout",
)  # fmt: skip

TOP_KEYS = (
    "name", "model", "machine", "nodes", "network", "layout", "layouts", "search", "dtype", "device",
    "efficiency", "scaling", "gradients", *STRATEGY_KEYS,
)  # fmt: skip

SEARCHED: dict[str, tuple[str, ...]] = {
    "tp": (), "cp": (), "ep": (), "pp": (), "micro_batch": (), "virtual_stages": (), "zero": (),
    "recompute": RECOMPUTED,
}  # fmt: skip
"""What a search may be told to keep to; words where the values are words."""

OVERLAPS = ("gradients", "parameters", "tensor", "experts", "pipeline")


FLAGS = ("sequence_parallel", "reshard", "uneven_stages", "scatter_gather", "fused_attention", "dropout")


def strategy_settings(keys: Keys, dtype: str) -> tuple[dict[str, Any], bool | None]:
    """Arguments of a Strategy that the keys give, and whether messages between stages are hidden."""
    taken: dict[str, Any] = {
        **{name: keys.whole(name) for name in ("sequence", "global_batch", "micro_batch", "virtual_stages")},
        **{name: keys.flag(name) for name in FLAGS},
        "pipeline": keys.word("pipeline", PIPELINES),
        "recompute": keys.word("recompute", RECOMPUTED),
        "context_kind": keys.word("context_kind", CONTEXT_KINDS),
        "traffic": _traffic(keys),
        "capacity": keys.number("capacity"),
        "bucket_bytes": _bucket(keys),
        "zero_stage": keys.whole("zero", 0),
        "optimizer_bytes": keys.whole("optimizer_bytes"),
        "parameter_bytes": ITEM_BYTES[dtype],
        "activation_bytes": ITEM_BYTES[dtype],
    }
    gradient = keys.word("gradient_dtype", tuple(ITEM_BYTES))
    taken["gradient_bytes"] = ITEM_BYTES[gradient] if gradient else None
    if taken["zero_stage"] is not None and taken["zero_stage"] > 3:
        raise keys.error("zero", f"{taken['zero_stage']} is none; write 0, 1, 2 or 3")
    if taken["virtual_stages"] is not None and taken["virtual_stages"] > 1 and taken["pipeline"] is None:
        taken["pipeline"] = "interleaved"
    hidden = _overlaps(keys)
    taken |= {f"overlap_{name}": hidden.get(name) for name in OVERLAPS if name != "pipeline"}
    return {name: value for name, value in taken.items() if value is not None}, hidden.get("pipeline")


def _bucket(keys: Keys) -> int | None:
    size = keys.size("bucket")
    if size is not None and size < LEAST_BUCKET_BYTES:
        raise keys.error("bucket", f"{size} bytes are hardly a bucket; write 1 MiB or more")
    return size


def _traffic(keys: Keys) -> str | None:
    value = keys.take("traffic")
    text = json.dumps(value) if isinstance(value, list) else keys.text("traffic")
    try:
        return None if text is None else read_traffic(text)
    except UsageError as problem:
        raise keys.error("traffic", str(problem).removeprefix("traffic: ")) from None


def _overlaps(keys: Keys) -> dict[str, bool]:
    value = keys.take("overlap")
    if value is None:
        return {}
    if isinstance(value, bool):
        return dict.fromkeys(OVERLAPS, value)
    own = Keys(keys.mapping(value, "overlap"), (*keys.spot, "overlap"), keys.origin, OVERLAPS)
    found = {name: own.flag(name) for name in OVERLAPS}
    own.refuse_unknown()
    return {name: flag for name, flag in found.items() if flag is not None}
