"""Requests: Case, and AXES, which has one row for each dimension of a case.

Expansion, refusals, planning, predictions, tables and ``ccbench list`` loop over AXES. All values are frozen
and cross process boundaries, so nothing but the standard library is imported for them (NumPy only where an
all_to_all_v asks for amounts).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, replace
from typing import Any

from ccbench.cases.capabilities import capabilities_of
from ccbench.collectives import COLLECTIVES, collective, sent_elements
from ccbench.dtypes import CPU_DTYPES, ITEM_BYTES, item_bytes
from ccbench.groups import Pair, parse_concurrent, parse_groups, parse_pair
from ccbench.units import plural

AXES_OF_ONE = re.compile(
    r"(?<= of )(?:(?:tp|cp|ep|dp|pp)1-)+(?=[a-z])|-(?:tp|cp|ep|dp|pp)1(?!\d)"
)
"""Axes of a layout with one rank, which labels leave out: ``tp of tp2-cp1-ep1-dp4-pp1`` is ``tp of tp2-dp4``."""

LONGEST_LABEL = 60
"""Characters of a value in a label."""


@dataclass(frozen=True)
class Axis:
    """One dimension of a case: its column, its labels, and what a suite may ask of it.

    meaning, unit: of the column in parquet files. label: format of a value in labels, which leave out the
    default and those in ``unlabelled``. default_label: label of the default where cases with other values are
    shown too; axes that have it are settings, which leave a case's id alone at their default. identity:
    whether cases that differ in it are different points. choice: a library's way to do the same work; other
    settings change the work, and times of different work do not race.
    needs: property of a Collective without which the axis has one value, ``blank``. key: in a suite's sweep.
    values, all_values: words that a sweep may list, and what ``all`` stands for; of a bool those of False and
    True. bounds: least and largest number that it takes. An axis without either has a reader of its own in
    ``ccbench.suite``. sweep_default: value of a sweep that does not name the axis. noun: a value, in errors.
    name, kind, default: of the field in ``Case``; kind as parquet calls it; None where there is no default.
    """

    meaning: str
    label: str = "{}"
    default_label: str = ""
    unit: str = ""
    unlabelled: tuple[Any, ...] = ()
    identity: bool = True
    choice: bool = False
    needs: str = ""
    blank: Any = None
    key: str = ""
    values: tuple[str, ...] = ()
    all_values: tuple[str, ...] = ()
    bounds: tuple[int, int] | None = None
    sweep_default: str | int = ""
    noun: str = ""
    name: str = ""
    kind: str = ""
    default: Any = None

    def label_of(self, value: Any) -> str:
        """Return the label of ``value``; empty where labels leave it out."""
        if value == self.default or value in self.unlabelled:
            return ""
        text = AXES_OF_ONE.sub("", self.label.format(value))
        # Lists of hundreds of groups fill screens; the digits tell one from another.
        digits = hashlib.sha256(text.encode()).hexdigest()[:4]
        return text if len(text) <= LONGEST_LABEL else f"{text[:LONGEST_LABEL]}... ({digits})"

    def from_word(self, word: Any) -> Any:
        """Value of a case for one word of a sweep."""
        return word == self.values[1] if self.kind == "bool" else word

    def from_cell(self, cell: Any) -> str | int | bool:
        """Value of a case for one cell of a run's table."""
        return _KINDS[self.kind](cell)


_KINDS: Mapping[str, Callable[[Any], str | int | bool]] = {
    "string": str,
    "int64": int,
    "bool": bool,
}


def axis(
    meaning: str, label: str = "{}", default_label: str = "", **declared: Any
) -> dict[str, Axis]:
    """Metadata of a field of Case: its row of AXES."""
    return {"axis": Axis(meaning, label, default_label, **declared)}


NO_ROOT = -1
"""The root of a case whose collective has none."""

NO_OP = "none"
"""The op of a case whose collective does not reduce."""


ALL_GROUPS = -1
"""All groups run at once."""

DEFAULT = "default"
"""Value that leaves a choice to the library."""

CALLABLE = re.compile(r"[\w./+-]{1,200}\.py:[A-Za-z_]\w{0,63}", re.ASCII)
"""An algorithm that is a function of the user's file: ``my_ar.py:all_reduce``."""

DEVICE_MEMORY = "device"

OPS = ("sum", "prod", "min", "max", "avg")
"""Operations that ``op: all`` stands for."""

PROCESSES = ONE_PROCESS, PER_GPU = ("one", "per_gpu")
"""Process models of backends that drive GPUs."""

PLACEMENTS = ("out_of_place", "in_place")
REGISTRATIONS = ("none", "local", "symmetric")

UNEVEN = "all_to_all_v"
"""The collective whose blocks differ in size."""

OVERLAP = "overlap"
"""The mode in which something is computed meanwhile."""

OVERLAP_PARTS = (
    "computation alone",
    "collective alone",
    "computation while communicating",
    "collective while computing",
)
"""Parts of a measurement in mode overlap; its samples are of both together, first start to last end."""


@dataclass(frozen=True)
class Variant:
    """Another way to start the ranks, by a suite's name for it. library: what stands in for the backend's
    own, a file or a folder that it is installed in; '' for none. environment: variables of the ranks.
    """

    name: str = ""
    library: str = ""
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class InexactData:
    """Random data whose sums are rounded, beside the exact data of timed launches (``ccbench.inexact``).

    distribution: of INEXACT_SPREADS. spread: largest over smallest scale of the elements, or how much larger
    than their sum the addends of ``cancelling`` are. seed: other numbers of the same distribution.
    """

    distribution: str = "normal"
    spread: float = 1.0
    seed: int = 1

    def __str__(self) -> str:
        """Return ``normal``, or ``normal, spread 1e+06, seed 2`` where these are not the usual ones."""
        words = [self.distribution]
        if self.spread != INEXACT_SPREADS[self.distribution]:
            words.append(f"spread {self.spread:g}")
        return ", ".join([*words, *([f"seed {self.seed}"] if self.seed != 1 else [])])


INEXACT_SPREADS: Mapping[str, float] = {
    "normal": 1.0,
    "log_uniform": 1e6,
    "cancelling": 1e6,
    "gradients": 1.0,
}
"""Distributions of InexactData, and the spread of each where a suite names none."""


@dataclass(frozen=True)
class Case:
    """One point of a suite; a field with ``axis`` is a row of AXES, and nothing else has to know of it.

    ``count`` is in elements: of the whole buffer for all_reduce, broadcast, reduce and send_recv;
    of one rank's block for all_gather, reduce_scatter, all_to_all, gather and scatter (nccl-tests'
    "count"); of the mean block that the busiest rank of an all_to_all_v sends. ``size_bytes`` is nccl-tests'
    "size": the largest buffer of one rank (of an all_to_all_v, the largest input).
    ``algorithm`` is a name, a name with a parameter (``hierarchical:4``), or ``default``. With groups, count
    and size are those of one group. ``started_with`` is what the name ``variant`` stands for; a case that was
    read back has the name alone.
    """

    suite: str
    backend: str = field(
        metadata=axis("such as cpu or nccl, or the library that an import names")
    )
    collective: str = field(metadata=axis("as nccl-tests names it, with underscores"))
    algorithm: str = field(
        metadata=axis(
            "algorithm asked for; `default`: the backend's choice",
            default=DEFAULT,
            choice=True,
        )
    )
    dtype: str = field(
        metadata=axis(
            "type of one element; empty where an import does not say",
            needs="moves_data",
            blank="uint8",
            values=tuple(ITEM_BYTES),
            all_values=CPU_DTYPES,
            sweep_default="float32",
        )
    )
    op: str = field(
        metadata=axis(
            "reduction, `none` where nothing is reduced",
            default=NO_OP,
            needs="reduces",
            values=(*OPS, "premulsum"),
            all_values=OPS,
        )
    )
    size_bytes: int = field(
        metadata=axis("largest buffer of one rank, as nccl-tests counts it", unit="bytes")
    )
    count: int = field(
        metadata=axis(
            "nccl-tests' count, the buffer or one rank's block; -1: an import does not say",
            unit="elements",
            identity=False,
        )
    )
    ranks: int = field(metadata=axis("ranks that took part", "{} ranks"))
    _: KW_ONLY
    nodes: int = field(
        default=1,
        metadata=axis(
            "machines of the ranks; 0: an import does not say",
            "{} nodes",
            unlabelled=(0,),
        ),
    )
    root: int = field(
        default=NO_ROOT,
        metadata=axis(
            "root rank, -1 where the collective has none",
            "root {}",
            unlabelled=(0,),
            needs="rooted",
        ),
    )
    in_place: bool = field(
        default=False,
        metadata=axis(
            "input and output share memory",
            "in place",
            needs="moves_data",
            key="placement",
            values=PLACEMENTS,
            all_values=PLACEMENTS,
        ),
    )
    mode: str = field(
        default="streaming",
        metadata=axis(
            "streaming, isolated, graph, cold or overlap",
            values=(
                "streaming",
                "isolated",
                "graph",
                "cold",
                OVERLAP,
            ),
            all_values=("streaming", "isolated"),
        ),
    )
    protocol: str = field(
        default=DEFAULT,
        metadata=axis(
            "protocol asked for, or `default`",
            "protocol {}",
            choice=True,
            values=(DEFAULT, "ll", "ll128", "simple"),
        ),
    )
    pair: str = field(
        default="",
        metadata=axis(
            "of send_recv: `0>3`, `0<>3`; empty: the ring of all ranks",
            "pair {}",
            "ring of all ranks",
            key="pairs",
        ),
    )
    groups: str = field(
        default="",
        metadata=axis(
            "such as `rank // 4`; size, count and bandwidths are one group's",
            "groups {}",
            "all ranks together",
        ),
    )
    active_group: int = field(
        default=ALL_GROUPS,
        metadata=axis(
            "group that alone ran, from 0; -1: all at once",
            "group {} alone",
            "all groups at once",
            key="group_mode",
        ),
    )
    concurrent: str = field(
        default="",
        metadata=axis(
            "collective at the same time, such as `all_gather on rank % 2`",
            "concurrent {}",
            "nothing concurrent",
        ),
    )
    traffic: str = field(
        default="",
        metadata=axis(
            "of all_to_all_v: `zipf:1.2`, `hot:0.5`, a matrix; empty: balanced",
            "traffic {}",
            "balanced",
        ),
    )
    overlap_with: str = field(
        default="",
        metadata=axis(
            "of mode overlap: matmul or memory; else empty",
            "computing {}",
            "nothing computed",
            noun="computation",
            values=("matmul", "memory"),
            all_values=("matmul", "memory"),
        ),
    )
    channels: int = field(
        default=0,
        metadata=axis(
            "channels asked for, 0: the library's choice",
            "{} channels",
            "channels default",
            choice=True,
            bounds=(0, 64),
            noun="number of channels",
        ),
    )
    transport: str = field(
        default=DEFAULT,
        metadata=axis(
            "way between devices: default, host, network",
            "transport {}",
            "transport default",
            choice=True,
            values=(DEFAULT, "host", "network"),
        ),
    )
    registration: str = field(
        default="none",
        metadata=axis(
            "of the buffers: none, local, symmetric",
            "registration {}",
            "registration none",
            choice=True,
            needs="moves_data",
            values=REGISTRATIONS,
            all_values=REGISTRATIONS,
        ),
    )
    aggregation: int = field(
        default=1,
        metadata=axis(
            "collectives in one group call",
            "{} at once",
            "1 at once",
            bounds=(1, 1024),
            noun="number of collectives at once",
        ),
    )
    misalignment_bytes: int = field(
        default=0,
        metadata=axis(
            "how far buffers start off their alignment",
            "{} B off",
            "aligned",
            unit="bytes",
            needs="moves_data",
            key="misalignment",
            bounds=(0, 4096),
            noun="number of bytes",
        ),
    )
    processes: str = field(
        default=ONE_PROCESS,
        metadata=axis(
            "that drive a host's GPUs: `one`, or one `per_gpu`",
            "one process per GPU",
            "one process",
            choice=True,
            values=PROCESSES,
            all_values=PROCESSES,
            noun="process model",
        ),
    )
    memory: str = field(
        default=DEFAULT,
        metadata=axis(
            "of the buffers: `default`, or `device` for memory of GPUs",
            "{} memory",
            "memory default",
            needs="moves_data",
            values=(DEFAULT, DEVICE_MEMORY),
        ),
    )
    variant: str = field(
        default="",
        metadata=axis(
            "the suite's name of the ranks' library and variables",
            "variant {}",
            "no variant",
            choice=True,
            key="variants",
        ),
    )
    cta_policy: str = field(
        default=DEFAULT,
        metadata=axis(
            "NCCL's multiprocessors: default, efficiency (few), zero (copy engines)",
            "CTA policy {}",
            "CTA policy default",
            choice=True,
            needs="moves_data",
            noun="CTA policy",
            values=(DEFAULT, "efficiency", "zero"),
        ),
    )

    started_with: Variant = field(default=Variant(), compare=False)
    inexact: InexactData | None = field(default=None, compare=False)
    """Data of further launches whose rounding is recorded, after the timed ones; no part of the case's id."""

    @property
    def case_id(self) -> str:
        """Sixteen hex digits that depend on everything asked of the case, but not on the suite's name.

        A setting counts only where it is not the default, so that a further axis leaves ids what they are.
        """
        usual = {axis.name: axis.default for axis in SETTINGS}
        canonical = ";".join(
            f"{name}={value}"
            for name, value in sorted(asked_of(self).items())
            if name not in usual or value != usual[name]
        )
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def point(self) -> Case:
        """The work without its means: cases that share it are measured one right after the other."""
        return replace(self, backend="", processes="", variant="", suite="")

    @property
    def one_pair(self) -> Pair | None:
        """The pair of ranks that alone communicates, if it is one."""
        return parse_pair(self.pair) if self.pair else None

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each group that runs, in group order; of a pair its two ranks."""
        pair = self.one_pair
        if pair:
            return ((pair.source, pair.target),)
        groups = parse_groups(self.groups, self.ranks)
        return groups if self.active_group == ALL_GROUPS else (groups[self.active_group],)

    @property
    def everybody(self) -> bool:
        """True if every rank communicates: no pair, and no group alone."""
        return not self.pair and self.active_group == ALL_GROUPS

    @property
    def communicating_ranks(self) -> tuple[int, ...]:
        """Ranks with something to do: all, a pair's, or those of groups and of the concurrent collective."""
        if self.everybody and not self.groups:
            return tuple(range(self.ranks))
        concurrent = self.concurrent_case
        groups = (*self.members, *(concurrent.members if concurrent else ()))
        communicating = tuple(dict.fromkeys(rank for group in groups for rank in group))
        return communicating if len(communicating) < self.ranks else tuple(range(self.ranks))

    @property
    def on_gpus(self) -> bool:
        """True if ranks are GPUs or have buffers there: a team then holds memory that others need."""
        return self.memory == DEVICE_MEMORY or capabilities_of(self.backend).on_gpus

    @property
    def group_ranks(self) -> int:
        """Ranks that communicate with each other: all of them, those of one group, or the two of a pair."""
        return len(self.members[0]) if self.pair or self.groups else self.ranks

    @property
    def concurrent_case(self) -> Case | None:
        """The concurrent collective as a case of its own; of about the same size in its own groups."""
        if not self.concurrent:
            return None
        parsed = parse_concurrent(self.concurrent)
        row = collective(parsed.collective)
        concurrent = replace(
            self,
            collective=parsed.collective,
            algorithm="default",
            op=(self.op if self.op != NO_OP else "sum") if row.reduces else NO_OP,
            root=0 if row.rooted else NO_ROOT,
            groups=parsed.groups if parsed.own_groups else self.groups,
            active_group=ALL_GROUPS if parsed.own_groups else self.active_group,
            concurrent="",
            traffic="",
            in_place=False,
        )
        item = item_bytes(self.dtype)
        count = row.count_for(self.size_bytes, concurrent.group_ranks, item)
        return replace(
            concurrent,
            count=count,
            size_bytes=row.size_bytes(count, concurrent.group_ranks, item),
        )

    def input_count(self, group_rank: int) -> int:
        """Elements of the input buffer of rank ``group_rank`` of a group."""
        if self.traffic:  # the amounts of each pair, a matrix of ranks x ranks
            return int(
                sent_elements(self.traffic, self.count, self.group_ranks)[group_rank].sum()
            )
        row = collective(self.collective)
        return row.input_count(self.count, self.group_ranks, group_rank, max(self.root, 0))

    def output_count(self, group_rank: int) -> int:
        """Elements of the output buffer of rank ``group_rank`` of a group."""
        if self.traffic:
            return int(
                sent_elements(self.traffic, self.count, self.group_ranks)[:, group_rank].sum()
            )
        row = collective(self.collective)
        return row.output_count(self.count, self.group_ranks, group_rank, max(self.root, 0))

    @property
    def label(self) -> str:
        """One line for people: ``all_reduce ring float32 sum 1048576 B, 4 ranks, cpu``."""
        words = [self.collective, self.algorithm, self.dtype]
        if self.op != NO_OP:
            words.append(self.op)
        words.append(f"{self.size_bytes} B")
        labels = [
            axis.label_of(getattr(self, axis.name))
            for axis in AXES[AXES.index(AXIS["ranks"]) + 1 :]
        ]
        return ", ".join(
            (" ".join(words), plural(self.ranks, "rank"), self.backend, *filter(None, labels))
        )


def _axes_of(case: type[Case]) -> Iterator[Axis]:
    """The row of each field, completed by the name, type and default of the field."""
    kinds = {"str": "string", "int": "int64", "bool": "bool"}
    for declared in fields(case):
        row: Axis | None = declared.metadata.get("axis")
        if row is not None:
            default = row.default if declared.default is MISSING else declared.default
            key, blank = row.key or declared.name, default if row.blank is None else row.blank
            sweep_default = row.sweep_default or (row.values[0] if row.values else default)
            yield replace(
                row,
                name=declared.name,
                kind=kinds[str(declared.type)],
                default=default,
                blank=blank,
                key=key,
                sweep_default=sweep_default,
                noun=row.noun or key,
            )


AXES = tuple(_axes_of(Case))
"""Every dimension of a case. Expansion, identity, labels, columns and tables are loops over them."""

AXIS: Mapping[str, Axis] = {axis.name: axis for axis in AXES}

IDENTITY = tuple(axis for axis in AXES if axis.identity)
"""Axes that distinguish points: everything asked of a case except its suite's name and the count."""

SETTINGS = tuple(axis for axis in AXES if axis.default_label)
"""Axes that labels and ids leave out at their default."""

WORK = tuple(axis for axis in SETTINGS if not axis.choice)
"""Settings that change what is done; others are a library's choice of how."""


def setting_labels(values: Mapping[str, Any], varying: Collection[str] = ()) -> list[str]:
    """Return labels of the settings of ``values`` that are not at their default, or are among ``varying``."""
    labels = (
        setting.label_of(values[setting.name])
        or setting.default_label * (setting.name in varying)
        for setting in SETTINGS
    )
    return [label for label in labels if label]


def case_of(row: Mapping[str, Any]) -> Case:
    """The case that a row of a run's table was written for."""
    values: dict[str, Any] = {axis.name: axis.from_cell(row[axis.name]) for axis in AXES}
    return Case(str(row["suite"]), **values)


def asked_of(case: Case) -> dict[str, Any]:
    """Return the axes of a case, without its suite, as JSON has them; ``case_of`` makes the case of it again."""
    return {axis.name: getattr(case, axis.name) for axis in AXES}


def moves_alike(collective: str, backends: Sequence[str], dtypes: Sequence[str]) -> bool:
    """Return whether as many bytes take as long in each of ``dtypes``: these are the same as far as they are
    known, or nothing is added, or all backends add natively.
    """
    same = len({*dtypes} - {""}) < 2
    row = COLLECTIVES.get(collective)
    native = all(
        capabilities_of(backend).adds_natively for backend in backends
    ) and "float8" not in "".join(dtypes)
    return same or (row is not None and (native or not row.reduces))


ALONE = ("isolated", "cold")
"""Modes in which each launch waits for the one before."""
