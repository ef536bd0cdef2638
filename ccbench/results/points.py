"""A run read back: its manifest, and each case as a Point: what was asked, what came back, what follows.

A manifest may be of another hand or version, so every entry may be missing or be of another kind; such an
entry counts as not there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.axes import IDENTITY, OVERLAP, Case, setting_labels
from ccbench.cases.measurement import MORE_ROUNDS, Conditions, Rounding, Status
from ccbench.columns import columns_of
from ccbench.errors import CcbenchError, UsageError
from ccbench.flags import NO_LINK_FLAGS, Flag
from ccbench.groups import parse_groups
from ccbench.results.schema import SCHEMA, Speed, bandwidths, usual_waits
from ccbench.topology.files import from_plain
from ccbench.topology.graph import Topology
from ccbench.units import format_change, format_size, plain

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types


LONGEST_NAME = 200


@dataclass(frozen=True)
class Manifest:
    """The contents of run.json; texts are one printable line, "" where nothing is said."""

    document: Mapping[str, Any] = field(default_factory=dict)

    def at(self, *path: str) -> Any:
        """The value below ``path``; None where there is none."""
        value: Any = self.document
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def mapping(self, *path: str) -> Mapping[str, Any]:
        """The mapping below ``path``; an empty one where there is none."""
        value = self.at(*path)
        return value if isinstance(value, Mapping) else {}

    def mappings(self, *path: str) -> tuple[Mapping[str, Any], ...]:
        """The mappings in the list below ``path``."""
        value = self.at(*path)
        return (
            tuple(entry for entry in value if isinstance(entry, Mapping))
            if isinstance(value, list)
            else ()
        )

    def text(self, *path: str) -> str:
        """The text below ``path``, or the ``name`` in a mapping there."""
        value = self.at(*path)
        if isinstance(value, Mapping):
            value = value.get("name")
        return plain(value, LONGEST_NAME) if isinstance(value, str) else ""

    @property
    def suite(self) -> str:
        """The suite's name."""
        return self.text("suite", "suite") or self.text("suite")

    @property
    def host(self) -> str:
        """The host that the run was started on."""
        return self.text("environment", "host")

    @property
    def machine(self) -> str:
        """The machine that predictions were priced on."""
        return self.text("machine")

    @property
    def processor(self) -> str:
        """The model of the host's processors."""
        return self.text("environment", "processor", "model")

    @property
    def created_at(self) -> str:
        """When the run began, ISO 8601."""
        return self.text("created_at")

    @property
    def network(self) -> str:
        """Value of --network when the run was made or imported, such as ``ib-ndr-400x8``."""
        return (
            self.text("options", "network") if self.mapping("options") else self.text("network")
        )

    def imported(self, source: str) -> Manifest:
        """Return what is kept of the imported file of that name; an empty one where there is none."""
        files = self.mappings("imported")
        return Manifest(
            next((file for file in files if source and file.get("source") == source), {})
        )

    @property
    def gpus(self) -> tuple[Mapping[str, Any], ...]:
        """Entries of the environment about each GPU."""
        return self.mappings("environment", "accelerators", "gpus")

    @property
    def planned_cases(self) -> int:
        """Number of cases the run was to have; 0 where it does not tell, as imports do not."""
        planned = self.at("planned_cases")
        return planned if isinstance(planned, int) else 0

    @cached_property
    def topology(self) -> Topology | None:
        """The graph of the machine that was detected; None where there is none, or none that can be read."""
        stored = self.at("topology")
        try:
            return (
                from_plain(stored, "run.json: topology")
                if isinstance(stored, Mapping)
                else None
            )
        except CcbenchError:
            return None  # of another version or hand: what needs the graph goes without


BOUND_TOLERANCE = 0.98
"""A time below this share of the bound is faster than rounding explains: bound or measurement are wrong."""

BEATEN_SAMPLE_SHARE = 0.05
"""A case beats its bound when more than this share of its samples does: fewer may be the clock's doing."""

_FIRST = (
    "collective",
    "ranks",
    "nodes",
    "dtype",
    "op",
    "backend",
    "algorithm",
    "protocol",
    "mode",
)
_NAMES = tuple(axis.name for axis in IDENTITY)
ORDER = (
    *_FIRST,
    *(name for name in _NAMES if name not in (*_FIRST, "size_bytes")),
    "size_bytes",
)
"""Columns of everything asked of a case but its suite's name; the points of a run are sorted by it."""

Samples = NDArray[np.float64]

NO_SAMPLES: Samples = np.zeros(0)
NO_SAMPLES.flags.writeable = False


@dataclass(frozen=True, kw_only=True)
class Point(Case, Rounding, Conditions, Speed):
    """One case of a run. Columns are as ``ccbench.results.SCHEMA`` has them; times are seconds per launch.

    Text is one printable line. What is not known is None, "", () or no samples. Figures of speed are None
    unless the case is OK; bound and prediction unless one was made, and always of an emulated device.
    run, baseline: how a report names the run where several are drawn. machine: as the run's manifest names
    it, else the devices as an imported output does. network: between nodes, as the run's options or a
    published row name it; empty where neither does. gpu: of a published row.
    algbw, busbw: in GB/s; of a pair or of one group.
    """

    case_id: str = ""
    status: Status = Status.OK
    detail: str = ""
    backend_version: str = ""
    algorithm_used: str = ""
    protocol_used: str = ""
    channels_used: int = 0
    library_estimate_seconds: float | None = None
    simulated: bool = False
    stop_reason: str = ""
    wrong_elements: int | None = None
    samples_seconds: Samples = field(
        default_factory=lambda: NO_SAMPLES, compare=False, repr=False
    )
    round_samples: tuple[int, ...] = ()
    rank_samples_seconds: tuple[Samples, ...] = field(default=(), compare=False, repr=False)
    bound_seconds: float | None = None
    predicted_seconds: float | None = None
    predicted_low_80_seconds: float | None = None
    predicted_high_80_seconds: float | None = None
    predicted_low_95_seconds: float | None = None
    predicted_high_95_seconds: float | None = None
    bottleneck: str = ""
    rank_waiting_seconds: tuple[Samples, ...] = field(default=(), compare=False, repr=False)
    rank_cpu_share: tuple[float, ...] = ()
    rank_queued_share: tuple[float, ...] = ()
    group_names: tuple[str, ...] = ()
    group_samples_seconds: tuple[Samples, ...] = field(default=(), compare=False, repr=False)
    node_of_rank: tuple[int, ...] = ()
    device_readings: str = ""
    source: str = ""
    source_table: int = 0
    tool: str = ""
    tool_version: str = ""
    device_model: str = ""
    time_statistic: str = "median"
    gpu: str = ""
    host: str = ""
    machine: str = ""
    network: str = ""
    run: str = ""
    baseline: bool = False

    @property
    def is_timed(self) -> bool:
        """True if there is a time that a clock gives: the case is OK and took longer than nothing."""
        median = self.median_seconds
        return self.status is Status.OK and median is not None and 0 < median < math.inf

    @property
    def rounds(self) -> list[Samples]:
        """The samples of each round; all in one where the lengths do not add up to them."""
        samples, lengths = (
            self.samples_seconds,
            [length for length in self.round_samples if length > 0],
        )
        if sum(lengths) != len(samples):
            return [samples] if len(samples) else []
        return [
            samples[end - length : end]
            for length, end in zip(lengths, accumulate(lengths), strict=True)
        ]

    @property
    def complete(self) -> bool:
        """False while rounds are planned that the run did not come to."""
        return self.stop_reason != MORE_ROUNDS

    @property
    def group_ranks(self) -> int:
        """Ranks that communicate with each other: two of a pair, those of a group, or all."""
        if self.pair:
            return 2
        try:
            return len(parse_groups(self.groups, self.ranks)[0]) if self.groups else self.ranks
        except UsageError:  # of a stored row that no version of ccbench wrote
            return self.ranks

    @property
    def setting(self) -> str:
        """Words for what differs from a plain case, nothing for one."""
        return ", ".join(setting_labels(vars(self)))

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Name and median of all that ran at the same time; () where it was not timed apart."""
        return tuple(zip(self.group_names, self.group_median_seconds, strict=False))

    @property
    def slowest_group(self) -> str:
        """Name of the slowest of what ran at the same time, and how much longer it took than the fastest."""
        if len(self.parts) < 2 or self.mode == OVERLAP:
            return ""
        fastest, slowest = (
            choose(self.parts, key=lambda part: part[1]) for choose in (min, max)
        )
        if slowest[1] <= fastest[1] or not fastest[1]:
            return "none"
        return f"{slowest[0]} {format_change(slowest[1] / fastest[1] - 1)}"

    @property
    def rank_waiting(self) -> tuple[float, ...]:
        """Share of a launch that each rank usually waited for others, in rank order; () if not known."""
        waits = usual_waits([waits.tolist() for waits in self.rank_waiting_seconds])
        return (
            tuple(waited / self.median_seconds for waited in waits)
            if self.median_seconds
            else ()
        )

    @property
    def imported(self) -> bool:
        """True if another tool measured the case."""
        return bool(self.source)

    @property
    def tool_and_version(self) -> str:
        """The program whose output was imported, with its version where that is known."""
        return " ".join(part for part in (self.tool, self.tool_version) if part)

    @property
    def emulated(self) -> bool:
        """True if the device was emulated: the result is real, the time says nothing about any device."""
        return Flag.EMULATION in self.flags

    @property
    def of_links(self) -> bool:
        """False if its rate is none of links: the device was emulated, or ranks shared it."""
        return NO_LINK_FLAGS.isdisjoint(self.flags)

    @property
    def trusted(self) -> bool:
        """True if nothing was flagged while the case ran."""
        return not self.flags

    @property
    def bound_share(self) -> float | None:
        """Share of the bound that was reached: the bound over measured time; one rank has no bound."""
        if not self.median_seconds or self.bound_seconds is None or self.group_ranks < 2:
            return None
        return self.bound_seconds / self.median_seconds

    @property
    def usual_bound_shares(self) -> tuple[float, float] | None:
        """Shares of the bound between which 80 % of healthy systems lie; None where that is not known."""
        low, high = self.predicted_low_80_seconds, self.predicted_high_80_seconds
        if self.bound_share is None or not self.bound_seconds or not low or not high:
            return None
        return self.bound_seconds / high, min(1.0, self.bound_seconds / low)

    @property
    def beaten_share(self) -> float | None:
        """Share of the samples that are faster than the bound allows; None where there is no bound."""
        if self.bound_seconds is None or not len(self.samples_seconds):
            return None
        return float(np.mean(self.samples_seconds < BOUND_TOLERANCE * self.bound_seconds))

    @property
    def beats_bound(self) -> bool:
        """True if the printed time, or more than BEATEN_SAMPLE_SHARE of the samples, beats the bound."""
        beaten = self.beaten_share
        if beaten is None or self.bound_share is None:
            return (self.bound_share or 0.0) * BOUND_TOLERANCE > 1.0
        return beaten > BEATEN_SAMPLE_SHARE

    @property
    def prediction_error(self) -> float | None:
        """Predicted over measured time, minus one: negative where the machine was slower than predicted."""
        if not self.median_seconds or self.predicted_seconds is None:
            return None
        return self.predicted_seconds / self.median_seconds - 1

    def busbw_at(self, seconds: float | None) -> float | None:
        """Bus bandwidth in GB/s this case would have if it took ``seconds``; None where no bus is used."""
        return bandwidths(self, seconds or 0.0)[1] if self.group_ranks > 1 else None

    @property
    def name(self) -> str:
        """One line that tells this case from others, but for its size; what is as usual is not said."""
        labels = (
            axis.label_of(getattr(self, axis.name))
            for axis in IDENTITY
            if axis.name != "size_bytes"
        )
        return " ".join(filter(None, labels))

    @property
    def size(self) -> str:
        """The size as people write it."""
        return format_size(self.size_bytes)

    @property
    def label(self) -> str:
        """One line that tells this case from the others of its run."""
        return f"{self.name} {self.size}"


LONGEST = {"groups": 100_000, "pair": 100_000, "detail": 300}
"""Characters of a text that are kept where not LONGEST_TEXT; lists of groups must stay whole to be read."""

LONGEST_TEXT = 200

RAW = ("device_readings",)
"""JSON texts, which are not touched."""

COLUMN_OF = {column.attribute: column.name for column in columns_of(Point)}
"""Fields whose column may have another name."""


def points_of_table(table: pa.Table, manifest: Manifest) -> tuple[Point, ...]:
    """Every row of ``table`` in its order; a column that it lacks keeps the default of its field."""
    kinds = {column.name: column.kind for column in SCHEMA}
    values: dict[str, Sequence[Any]] = {
        "host": [manifest.host] * table.num_rows,
        "network": [manifest.network] * table.num_rows,
    }
    for attribute in fields(Point):
        column = COLUMN_OF.get(attribute.name, attribute.name)
        if column in table.column_names:
            values[attribute.name] = _cells(
                table[column], kinds.get(column, "string"), attribute
            )
    values["machine"] = [manifest.machine or device for device in values["device_model"]]
    values["status"] = [Status(status) for status in values["status"]]
    points = []
    for row in zip(*values.values(), strict=True):
        fields_of_point: dict[str, Any] = dict(zip(values, row, strict=True))
        if (
            fields_of_point["oversubscribed"]
            and Flag.OVERSUBSCRIBED not in fields_of_point["flags"]
        ):
            fields_of_point["flags"] = (*fields_of_point["flags"], Flag.OVERSUBSCRIBED.value)
        # Nothing is known of the speed of the device that an emulated one stands for.
        if Flag.EMULATION in fields_of_point["flags"]:
            predicted = (name for name in values if name.startswith("predicted_"))
            fields_of_point |= dict.fromkeys(("bound_seconds", *predicted))
        if fields_of_point["network"].startswith("none"):
            fields_of_point["network"] = ""
        points.append(Point(**fields_of_point))
    return tuple(points)


def _cells(column: pa.ChunkedArray, kind: str, attribute: Field[Any]) -> Sequence[Any]:
    """The cells of a column as the field ``attribute`` has them; here alone it matters how a null looks."""
    if kind == "list<double>":
        arrays = _arrays(column)
        return [tuple(cell.tolist()) for cell in arrays] if attribute.compare else arrays
    if kind == "list<list<double>>":
        lists = column.combine_chunks()
        arrays = _arrays(lists.values)
        return [tuple(arrays[start:end]) for start, end in pairwise(lists.offsets.to_pylist())]
    cells = column.to_pylist()
    if kind == "list<string>":
        return [tuple(map(plain, cell or ())) for cell in cells]
    if kind.startswith("list"):
        return [tuple(cell or ()) for cell in cells]
    if kind == "string":
        longest = LONGEST.get(attribute.name, LONGEST_TEXT)
        raw = attribute.name in RAW
        # Most cells of a column are equal, so each text is made safe once.
        texts = {
            cell: cell if raw else plain(cell, longest)
            for cell in set(cells)
            if cell is not None
        }
        return [texts.get(cell, "") for cell in cells]
    # A number that is none says as little as a null does.
    return [attribute.default if cell is None or cell != cell else cell for cell in cells]


def _arrays(column: pa.ChunkedArray | pa.Array) -> list[Samples]:
    """The lists of numbers in a column as views of one array; a null is an empty one."""
    lists = column.combine_chunks() if hasattr(column, "chunks") else column
    numbers = lists.values.to_numpy(zero_copy_only=False)
    return [numbers[start:end] for start, end in pairwise(lists.offsets.to_pylist())]
