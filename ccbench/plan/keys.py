"""The keys of a PLAN.yaml and what each may say; every mistake tells what to write instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainValidator

from ccbench.collectives import read_traffic
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import UsageError
from ccbench.plan.strategy import CONTEXT_KINDS, PIPELINES, RECOMPUTED
from ccbench.suite.model import StrictModel
from ccbench.suite.readers import MisfitError
from ccbench.units import parse_duration, parse_fraction, parse_size, shown, suggestion

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


def _word(words: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise MisfitError(f"{shown(value)} is not known; {suggestion(value, words)}")
        return str(value)

    return read


def _some(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """One value or a list of them, each once."""

    def read_all(value: Any) -> tuple[Any, ...]:
        listed = value if isinstance(value, list) else [value]
        if not listed:
            raise MisfitError("is an empty list; write a value, or leave the key out")
        return tuple(dict.fromkeys(map(read, listed)))

    return read_all


def _number(least: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value < least:
            raise MisfitError(f"{shown(value)} is not a number {'above' if least else 'from'} 0")
        if value and not LEAST_NUMBER <= value <= MOST_NUMBER:
            raise MisfitError(f"{shown(value)} is out of range; write {LEAST_NUMBER:g} to {MOST_NUMBER:g}")
        return float(value)

    return read


def _fraction(value: Any) -> float:
    found = parse_fraction(value)
    if found < LEAST_NUMBER:
        raise MisfitError("is 0; write such as 50%")
    return found


def _size(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        found = parse_size(value)
        if found < least:
            raise MisfitError(f"{found} bytes are too few; write {max(least >> 20, 1)} MiB or more")
        return found

    return read


def _traffic(value: Any) -> str:
    try:
        return read_traffic(json.dumps(value) if isinstance(value, list) else _text(value))
    except UsageError as problem:
        raise MisfitError(str(problem).removeprefix("traffic: ")) from None


Text = Annotated[str | None, _reads(_text)]
Flag = Annotated[bool | None, _reads(_flag)]
Whole = Annotated[int | None, _reads(_whole(1))]
Wholes = Annotated[tuple[int, ...] | None, _reads(_some(_whole(1)))]
Fraction = Annotated[float | None, _reads(_fraction)]
Duration = Annotated[float | None, _reads(parse_duration)]
Dtype = Annotated[str | None, _reads(_word(tuple(ITEM_BYTES)))]


# -- keys ---------------------------------------------------------------------------------------------------


class OverlapKeys(StrictModel):
    """Which communication runs behind computing."""

    gradients: Flag = None
    parameters: Flag = None
    tensor: Flag = None
    experts: Flag = None
    pipeline: Flag = None


def _all_alike(value: Any) -> Any:
    """``overlap: true`` is every kind."""
    return dict.fromkeys(OverlapKeys.model_fields, value) if isinstance(value, bool) else value


class StrategyKeys(StrictModel):
    """What a plan says for all layouts, and one of them for itself: everything of a Strategy but axes."""

    sequence: Whole = None
    global_batch: Whole = None
    micro_batch: Whole = None
    sequence_parallel: Flag = None
    zero: Annotated[int | None, _reads(_whole(0, MOST_ZERO_STAGE))] = None
    reshard: Flag = None
    pipeline: Annotated[str | None, _reads(_word(PIPELINES))] = None
    virtual_stages: Whole = None
    uneven_stages: Flag = None
    scatter_gather: Flag = None
    recompute: Annotated[str | None, _reads(_word(RECOMPUTED))] = None
    gradient_dtype: Dtype = None
    optimizer_bytes: Whole = None
    bucket: Annotated[int | None, _reads(_size(LEAST_BUCKET_BYTES))] = None
    overlap: Annotated[OverlapKeys | None, BeforeValidator(_all_alike)] = None
    context_kind: Annotated[str | None, _reads(_word(CONTEXT_KINDS))] = None
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
        if self.virtual_stages is not None and self.virtual_stages > 1 and self.pipeline is None:
            taken["pipeline"] = "interleaved"
        for name, flag in self.overlap or ():
            if name != "pipeline":
                taken[f"overlap_{name}"] = flag
        taken |= {"parameter_bytes": ITEM_BYTES[dtype], "activation_bytes": ITEM_BYTES[dtype]}
        return {name: value for name, value in taken.items() if value is not None}

    @property
    def hide_pipeline(self) -> bool | None:
        """Whether messages between stages run behind computing."""
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
    """What a search keeps to; of a key that is not there it tries everything that divides."""

    tp: Wholes = None
    cp: Wholes = None
    ep: Wholes = None
    pp: Wholes = None
    micro_batch: Wholes = None
    virtual_stages: Wholes = None
    zero: Annotated[tuple[int, ...] | None, _reads(_some(_whole(0, MOST_ZERO_STAGE)))] = None
    recompute: Annotated[tuple[str, ...] | None, _reads(_some(_word(RECOMPUTED)))] = None


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


def _by_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _of_matrices(value: Any) -> Any:
    return value if value is None or isinstance(value, dict) else {"matrix": value}


class PlanKeys(StrategyKeys):
    """Everything a plan may say. model, layout, layouts: of several kinds, so they are read by themselves."""

    name: Text = None
    model: Any = None
    machine: Text = None
    nodes: Whole = None
    network: Text = None
    layout: Any = None
    layouts: Any = None
    search: SearchKeys | None = None
    dtype: Dtype = None
    device: Annotated[DeviceKeys | None, BeforeValidator(_by_name)] = None
    efficiency: Annotated[EfficiencyKeys | None, BeforeValidator(_of_matrices)] = None
    scaling: Annotated[str | None, _reads(_word(("weak", "strong")))] = None
    gradients: GradientKeys | None = None
