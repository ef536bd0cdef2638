"""PLAN.yaml to a Plan: every key checked, every mistake told with its line, what was seen and what to write."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import SuiteError, UsageError
from ccbench.layouts import AXES, Layout, make_layout
from ccbench.parallelism.shape import ModelShape, make_shape, named_shape
from ccbench.parallelism.strategy import CONTEXT_KINDS, PIPELINES, RECOMPUTED, Strategy
from ccbench.parallelism.textbook import Gradients
from ccbench.suite.document import MOST_BYTES, Origin, read_document
from ccbench.units import parse_duration, parse_fraction, parse_size, shown

Spot = tuple[str | int, ...]

SCALINGS = ("weak", "strong")


@dataclass(frozen=True)
class Choice:
    """One way to train that a plan names: sizes of axes, and what of a Strategy differs from its defaults.

    axes: as ``make_layout`` takes them; dp may be missing, and then fills the machine.
    """

    name: str
    axes: Mapping[str, int | str]
    settings: Mapping[str, Any]
    spot: Spot = ()

    def strategy(self, ranks: int) -> Strategy:
        """On so many ranks; UsageError where the numbers do not divide."""
        return Strategy(make_layout(self.axes, ranks), **self.settings)


@dataclass(frozen=True)
class Wanted:
    """What a search goes through, by setting; a setting that is not named has the one value of the plan."""

    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Device:
    """What a plan says about a device instead of the machine's own: None leaves it to the machine.

    peak_flops: floating point operations per second at its dtype. memory_bytes: that a model may fill.
    efficiency: share of the peak that matrix products reach.
    """

    peak_flops: float | None = None
    memory_bytes: int | None = None
    efficiency: float | None = None


@dataclass(frozen=True)
class Plan:
    """Everything a PLAN.yaml says.

    choices: one for ``layout``, several for ``layouts``, none where layouts are searched or ``gradients`` is all.
    settings: of a Strategy, for every choice. wanted: of a search, None where there is none.
    hide_pipeline: whether messages between stages run behind computing, None: as the schedule's usual code does.
    """

    name: str
    shape: ModelShape | None
    machine: str | None
    nodes: int | None
    network: str | None
    choices: tuple[Choice, ...]
    settings: Mapping[str, Any]
    wanted: Wanted | None
    device: Device
    hide_pipeline: bool | None
    scaling: str
    gradients: Gradients | None
    dtype: str = "bfloat16"
    origin: Origin = field(default_factory=Origin)


def load_plan(path: Path | str) -> Plan:
    """The plan of a file. Raises SuiteError in one line with file and line."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "is no file name"
        raise SuiteError(f"{path}: cannot be read ({reason}); name the file of a plan") from None
    return read_plan(content, str(path), path.stem)


def read_plan(content: bytes | str, place: str = "plan", name: str = "plan") -> Plan:
    """The plan of YAML text; ``place`` begins every error, ``name`` is its name where it does not say one."""
    encoded = content.encode() if isinstance(content, str) else content
    if not encoded.strip():
        raise SuiteError(f"{place}: is empty; write at least model, machine, layout and global_batch")
    document = read_document(encoded, place)
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
        top = _Keys(self.tree, (), self.origin, TOP_KEYS)
        gradients = self.gradients(top)
        dtype = top.word("dtype", tuple(ITEM_BYTES)) or "bfloat16"
        settings, hide = strategy_settings(top, dtype)
        choices, wanted = self.choices(top, settings, dtype)
        shape = None if gradients is not None else self.shape(top)
        if gradients is None:
            self.check_settings(top, choices, settings)
        plan = Plan(
            name=top.text("name") or name,
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
            origin=self.origin,
        )
        top.refuse_unknown()
        return plan

    def shape(self, top: _Keys) -> ModelShape:
        value = top.take("model")
        if value is None:
            raise top.error(
                "model", "is missing; write a name such as gpt3-175b, or layers, hidden, heads, ..."
            )
        try:
            if isinstance(value, dict):
                return make_shape({"name": "model", **value})
            return named_shape(str(value))
        except UsageError as problem:
            key = str(problem).split()[1].strip("'") if isinstance(value, dict) else ""
            spot = ("model", key) if isinstance(value, dict) and key in value else ("model",)
            raise self.origin.error(spot, str(problem).removeprefix("shape: ")) from None

    def gradients(self, top: _Keys) -> Gradients | None:
        """``gradients:`` with stated times; a plan of them needs no machine."""
        value = top.take("gradients")
        if value is None:
            return None
        keys = _Keys(
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

    def choices(
        self, top: _Keys, settings: dict[str, Any], dtype: str
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
            return tuple(found), self.wanted(wanted)
        if one == "search" or (one is None and wanted is not None):
            return (), self.wanted(wanted or {})
        if one is None:
            return (), None
        return (self.choice(one, ("layout",), settings, dtype),), self.wanted(wanted)

    def choice(self, value: Any, spot: Spot, settings: dict[str, Any], dtype: str) -> Choice:
        if isinstance(value, str):
            from ccbench.layouts import parse_layout

            try:
                made = parse_layout(value)
            except UsageError as problem:
                raise self.origin.error(spot, str(problem)) from None
            return Choice(value, _axes_of(made), settings, spot)
        if not isinstance(value, dict):
            raise self.origin.error(spot, f"{shown(value)} is no layout; write {{tp: 8, pp: 2}} or search")
        keys = _Keys(value, spot, self.origin, (*AXIS_KEYS, "name", *STRATEGY_KEYS))
        name = keys.text("name")
        axes: dict[str, int | str] = {}
        for axis in (*AXES, "etp"):
            number = keys.whole(axis)
            if number is not None:
                axes[axis] = number
        order = keys.text("order")
        if order is not None:
            axes["order"] = order
        # What one layout says comes after what the plan says for all; `overlap` is for all alone.
        own, _ = strategy_settings(keys, dtype)
        keys.refuse_unknown()
        label = name or "-".join(f"{axis}{size}" for axis, size in axes.items() if axis != "order") or "dp"
        return Choice(label, axes, {**settings, **own}, spot)

    def wanted(self, value: Any) -> Wanted | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.origin.error(
                ("search",), f"{shown(value)} is no mapping; write tp: [1, 2, 4, 8] and so on"
            )
        keys = _Keys(value, ("search",), self.origin, tuple(SEARCHED))
        found: dict[str, tuple[Any, ...]] = {}
        for name, words in SEARCHED.items():
            given = keys.words(name, words) if words else keys.wholes(name, least=0 if name == "zero" else 1)
            if given:
                found[name] = tuple(given)
        keys.refuse_unknown()
        return Wanted(found)

    def device(self, top: _Keys) -> Device:
        value = top.take("device")
        efficiency = top.fraction("efficiency")
        if value is None:
            return Device(efficiency=efficiency)
        keys = _Keys(top.mapping(value, "device"), ("device",), self.origin, ("teraflops", "memory"))
        teraflops, memory = keys.number("teraflops"), keys.size("memory")
        keys.refuse_unknown()
        return Device(None if teraflops is None else teraflops * 1e12, memory, efficiency)

    def check_settings(self, top: _Keys, choices: tuple[Choice, ...], settings: dict[str, Any]) -> None:
        for key in ("global_batch", "sequence"):
            if key not in settings and not (choices and all(key in one.settings for one in choices)):
                raise top.error(key, f"is missing; write such as '{key}: {1024 if 'b' in key else 4096}'")


def _axes_of(layout: Layout) -> dict[str, int | str]:
    axes: dict[str, int | str] = {axis: getattr(layout, axis) for axis in AXES}
    axes["order"] = layout.order
    if layout.etp:
        axes["etp"] = layout.etp
    return axes


class _Keys:
    """One mapping of the file: values by key, each with an error that names its line."""

    def __init__(self, tree: dict[str, Any], spot: Spot, origin: Origin, known: tuple[str, ...]) -> None:
        self.tree, self.spot, self.origin, self.known = tree, spot, origin, known

    def error(self, key: str, message: str) -> SuiteError:
        return self.origin.error((*self.spot, key), message)

    def refuse_unknown(self) -> None:
        for key in self.tree:
            if key not in self.known:
                near = difflib.get_close_matches(key, self.known, n=1)
                cure = f"did you mean {near[0]}" if near else f"one of {', '.join(self.known)}"
                raise self.error(key, f"is no key; {cure}")

    def take(self, key: str) -> Any:
        return self.tree.get(key)

    def mapping(self, value: Any, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(key, f"{shown(value)} is no mapping; write keys below it")
        return value

    def text(self, key: str) -> str | None:
        value = self.take(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, f"{shown(value)} is no text")
        return value

    def word(self, key: str, words: tuple[str, ...]) -> str | None:
        value = self.take(key)
        if value is not None and value not in words:
            raise self.error(key, f"{shown(value)} is none; write one of {', '.join(words)}")
        return value

    def flag(self, key: str) -> bool | None:
        value = self.take(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, f"{shown(value)} is no yes or no; write true or false")
        return value

    def whole(self, key: str, least: int = 1) -> int | None:
        value = self.take(key)
        if value is not None and not _is_whole(value, least):
            raise self.error(key, f"{shown(value)} is no whole number from {least} on")
        return value

    def wholes(self, key: str, least: int = 1) -> list[int]:
        value = self.take(key)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if not all(_is_whole(one, least) for one in listed):
            raise self.error(key, f"{shown(value)} holds something that is no whole number from {least} on")
        return listed

    def words(self, key: str, words: tuple[str, ...]) -> list[str]:
        value = self.take(key)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        for one in listed:
            if one not in words:
                raise self.error(key, f"{shown(one)} is none; write some of {', '.join(words)}")
        return listed

    def number(self, key: str) -> float | None:
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise self.error(key, f"{shown(value)} is no number above 0")
        return float(value)

    def _parsed(self, key: str, parse: Callable[[Any], Any]) -> Any:
        value = self.take(key)
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as problem:
            raise self.error(key, str(problem)) from None

    def duration(self, key: str) -> float | None:
        """Seconds."""
        found: float | None = self._parsed(key, parse_duration)
        return found

    def fraction(self, key: str) -> float | None:
        """Of one."""
        found: float | None = self._parsed(key, parse_fraction)
        if found == 0:
            raise self.error(key, "is nothing; write such as 50%")
        return found

    def size(self, key: str) -> int | None:
        """Bytes."""
        found: int | None = self._parsed(key, parse_size)
        if found == 0:
            raise self.error(key, "is nothing; write such as 25 MiB")
        return found


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


AXIS_KEYS = (*AXES, "etp", "order")

STRATEGY_KEYS = (
    "sequence", "global_batch", "micro_batch", "sequence_parallel", "zero", "reshard", "pipeline",
    "virtual_stages", "uneven_stages", "scatter_gather", "recompute", "gradient_dtype", "optimizer_bytes",
    "bucket", "overlap", "context_kind", "traffic", "capacity",
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

OVERLAPS = ("gradients", "parameters", "tensor", "pipeline")


def strategy_settings(keys: _Keys, dtype: str) -> tuple[dict[str, Any], bool | None]:
    """Arguments of a Strategy that the keys give, and whether messages between stages are hidden."""
    taken: dict[str, Any] = {
        **{name: keys.whole(name) for name in ("sequence", "global_batch", "micro_batch", "virtual_stages")},
        **{
            name: keys.flag(name)
            for name in ("sequence_parallel", "reshard", "uneven_stages", "scatter_gather")
        },
        "pipeline": keys.word("pipeline", PIPELINES),
        "recompute": keys.word("recompute", RECOMPUTED),
        "context_kind": keys.word("context_kind", CONTEXT_KINDS),
        "traffic": keys.text("traffic"),
        "capacity": keys.number("capacity"),
        "bucket_bytes": keys.size("bucket"),
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
    taken |= {f"overlap_{name}": hidden.get(name) for name in ("gradients", "parameters", "tensor")}
    return {name: value for name, value in taken.items() if value is not None}, hidden.get("pipeline")


def _overlaps(keys: _Keys) -> dict[str, bool]:
    value = keys.take("overlap")
    if value is None:
        return {}
    if isinstance(value, bool):
        return dict.fromkeys(OVERLAPS, value)
    own = _Keys(keys.mapping(value, "overlap"), (*keys.spot, "overlap"), keys.origin, OVERLAPS)
    found = {name: own.flag(name) for name in OVERLAPS}
    own.refuse_unknown()
    return {name: flag for name, flag in found.items() if flag is not None}
