"""Advice as lines for a screen, as a JSON document, and in the two forms that NCCL reads.

Nothing here was run on NCCL: the forms are those of its documents and sources.

Environment ("Environment Variables" of NCCL's user guide, under NCCL_ALGO and NCCL_PROTO): since 2.24 a list
may be given per collective, ``allreduce:ring;allgather:pat``; before that one list holds for all collectives.
NCCL reads it once in a process and knows no sizes there.

CSV (NVIDIA/nccl: ext-tuner/example/README.md since 2.27.5, later plugins/tuner/example): a line is
``collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff``; the last
two may be missing (8 or 9 fields); -1 matches everything; the first line that matches is taken; lines that
start with # are comments, and a line may have 255 characters. There is no column for the type of the
elements.

The README says that -1 channels keep NCCL's choice. In its source (plugin.c of 2.27.5 at 3ea7eedf, and of
later versions at 35512d6f and 837821a4) the number is 1 before a line is looked for and -1 leaves it so, and
NCCL (ncclGetAlgoInfo in src/enqueue.cc) takes every number but 0 for the channels it may use at most. So 0 is
written where channels are not known: both readings then leave the choice to NCCL.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from ccbench.analysis.significance import CONFIDENCE
from ccbench.analysis.tuning import (
    DEFAULT,
    KEPT,
    SETTINGS_OF_LIBRARIES,
    Advice,
    Band,
    Choice,
    Gain,
    Rules,
    Timing,
    advise,
    everywhere,
)
from ccbench.cases.capabilities import capabilities_of
from ccbench.report.present import Table, aligned, columns, values_of
from ccbench.units import format_change, format_size, plain, plural

COLLECTIVE_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}

CSV_ALGORITHMS = {
    "ring": "ring",
    "tree": "tree",
    "collnetdirect": "collnet_direct",
    "collnetchain": "collnet_chain",
    "nvls": "nvls",
    "nvlstree": "nvls_tree",
    "pat": "pat",
}

ONLY_SIMPLE = ("collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
"""Algorithms that exist with one protocol (src/graph/tuning.cc)."""

VARIABLE_VALUES = {
    **{name: name for name in CSV_ALGORITHMS},
    "collnet": "collnetdirect,collnetchain",
}

PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}

CSV_COLUMNS = (
    "collective_type",
    "min_bytes",
    "max_bytes",
    "algorithm",
    "protocol",
    "channels",
    "nNodes",
    "nRanks",
    "numPipeOps",
    "regBuff",
)

ANY = -1

LONGEST_LINE = 200
"""Characters of a comment; the example reads 255 at once and takes the rest for another line."""

_HEAD = "made by ccbench from measured points; this file was never run on NCCL by ccbench"


def nccl_environment(timings: Iterable[Timing], rules: Rules | None = None) -> str:
    """Lines of a shell that set NCCL_ALGO and NCCL_PROTO, with comments; comments alone without advice.

    A collective is set where one choice may be set for all sizes that were measured: nowhere slower.
    """
    own = _of_nccl(timings)
    settled: dict[str, Choice] = {}
    for name, choice in sorted(everywhere(own, rules).items()):
        words = VARIABLE_VALUES.get(choice.algorithm) or PROTOCOLS.get(choice.protocol)
        if name in COLLECTIVE_NAMES and words and _sayable(choice):
            settled[name] = choice
    advised = {
        advice.situation.collective
        for advice in advise(own, rules)
        for band in advice.bands
        if band.choice
    }
    lines = _comments(
        _HEAD,
        "one list per collective is understood since NCCL 2.24; NCCL's guide advises to leave them unset",
        *(
            f"{name}: what is fastest depends on the size, and NCCL's environment knows none; use the CSV"
            for name in sorted(advised - set(settled))
        ),
    )
    parts = {"NCCL_ALGO": list[str](), "NCCL_PROTO": list[str]()}
    remarks = [] if settled else ["no collective has one choice to set for all its sizes"]
    for name, choice in settled.items():
        algorithm = VARIABLE_VALUES.get(choice.algorithm)
        protocol = PROTOCOLS.get(choice.protocol)
        for variable, word in (("NCCL_ALGO", algorithm), ("NCCL_PROTO", protocol)):
            parts[variable] += [f"{COLLECTIVE_NAMES[name]}:{word}"] if word else []
        if choice.protocol == "ll128":
            remarks.append(
                "LL128 corrupts data on machines that do not support it (NCCL's guide): verify results"
            )
        if choice.channels:
            remarks.append(
                f"{name} was measured with {choice.channels} channels, which can only be set for all"
            )
    lines += [
        f'export {variable}="{";".join(words)}"' for variable, words in parts.items() if words
    ]
    return "\n".join([*lines, *_comments(*remarks)]) + "\n"


def nccl_csv(timings: Iterable[Timing], rules: Rules | None = None) -> str:
    """The tuner plug-in's file. What it cannot say is left out, each with a comment."""
    notes: list[str] = []
    alike: dict[tuple[str, int, int], list[Advice]] = defaultdict(list)
    for one in advise(_of_nccl(timings), rules):
        where = one.situation
        if where.collective in COLLECTIVE_NAMES:
            alike[where.collective, where.nodes, where.ranks].append(one)
        elif any(band.choice for band in one.bands):
            notes.append(f"{where.collective} left out: NCCL has no choice of algorithm there")
    rows: list[str] = []
    # The plug-in takes the first line that matches: those for any number of nodes come last.
    for (collective, nodes, ranks), members in sorted(
        alike.items(), key=lambda item: item[0][1] == 0
    ):
        place = f"{collective} on {plural(ranks, 'rank')}"
        for band in _agreed_bands(place, members, notes):
            choice = _for_plug_in(band)
            if choice is None:
                label = band.choice.label if band.choice else ""
                why = f"{label} left out: the plug-in needs algorithm and protocol"
                notes.append(f"{place} {band.low_bytes}-{band.high_bytes} B: {why}")
            else:
                # No channels are NCCL's own choice, see above.
                numbers = (band.channels, nodes or ANY, ranks, ANY, ANY)
                words = (
                    COLLECTIVE_NAMES[collective],
                    band.low_bytes,
                    band.high_bytes,
                    *choice,
                    *numbers,
                )
                rows.append(",".join(map(str, words)))
    head = [
        _HEAD,
        "read by NCCL's example tuner plug-in (NCCL_TUNER_CONFIG_FILE), NCCL 2.27.5 and later",
    ]
    if any(row.split(",")[5] == "0" for row in rows):
        head.append(
            "channels 0: NCCL's own choice; -1 would leave one channel, as the plug-in's source is"
        )
    return "\n".join([*_comments(*head, *notes, ",".join(CSV_COLUMNS)), *rows]) + "\n"


def _of_nccl(timings: Iterable[Timing]) -> tuple[Timing, ...]:
    plain = (timing for timing in timings if not timing.situation.work)
    return tuple(one for one in plain if capabilities_of(one.choice.backend).nccl_settings)


def _agreed_bands(place: str, members: Sequence[Advice], notes: list[str]) -> list[Band]:
    """Bands of sizes at which all types, operations and placements that were measured ask for the same."""
    answers: dict[int, list[Band]] = defaultdict(list)
    for member in members:
        for band in member.bands:
            for size in band.sizes_bytes:
                answers[size].append(band)
    bands: list[Band] = []
    open_band = False
    for size in sorted(answers):
        here = answers[size]
        asked = {(band.choice, band.channels, band.ran) for band in here}
        if len({band.choice for band in here}) > 1:
            notes.append(
                f"{place}: {size} B left out: types, operations or placements differ there"
            )
        if len(asked) > 1 or here[0].choice is None:
            open_band = False
            continue
        if open_band and (bands[-1].choice, bands[-1].channels, bands[-1].ran) in asked:
            bands[-1] = replace(
                bands[-1], high_bytes=size, sizes_bytes=(*bands[-1].sizes_bytes, size)
            )
        else:
            bands.append(replace(here[0], low_bytes=size, high_bytes=size, sizes_bytes=(size,)))
        open_band = True
    return bands


def _for_plug_in(band: Band) -> tuple[str, str] | None:
    """Algorithm and protocol of a band in the plug-in's words; None where either is not known."""
    choice = band.choice
    if choice is None or not _sayable(choice):
        return None
    algorithm = choice.algorithm if choice.algorithm in CSV_ALGORITHMS else band.ran[0]
    protocol = choice.protocol if choice.protocol != DEFAULT else band.ran[1]
    if algorithm in ONLY_SIMPLE:
        protocol = "simple"
    known = algorithm in CSV_ALGORITHMS and protocol in PROTOCOLS
    return (CSV_ALGORITHMS[algorithm], protocol) if known else None


def _sayable(choice: Choice) -> bool:
    """True if a file can ask for it: it sets nothing else, and processes are the application's own affair."""
    settings = zip(SETTINGS_OF_LIBRARIES, choice.settings, strict=True)
    others = [
        axis.name
        for axis, value in settings
        if value != axis.default and axis.name != "processes"
    ]
    return not others


def _comments(*texts: str) -> list[str]:
    """One comment per text, printable, short enough for the plug-in's reader."""
    clean = (
        "".join(c if c.isprintable() else "?" for c in " ".join(text.split())) for text in texts
    )
    return [f"# {text}"[:LONGEST_LINE] for text in dict.fromkeys(clean)]


DOCUMENT_VERSION = 1
"""Of the JSON document; it changes when a key is dropped or means another thing."""


def advice_lines(advice: Iterable[Advice], rules: Rules | None = None) -> list[str]:
    """Per situation in which choices were compared a line, then a line per band; else a remark."""
    rules = rules or Rules()
    compared = [one for one in advice if one.compared]
    if not compared:
        return [
            "nothing to compare: no case on two ranks or more was measured with two choices at one size"
        ]
    lines: list[str] = []
    for one in compared:
        lines.append(
            plain(one.situation.label, 400) + (" (SIMULATED)" if one.simulated else "")
        )
        rows = [_band_row(band) for band in one.bands]
        lines += [f"  {line}" for line in aligned(Table(columns("<", "<", "<"), rows))[1:]]
        if one.flags:
            lines.append(f"  flagged while measured: {', '.join(one.flags)}")
    advised = [band for one in compared for band in one.bands if band.choice]
    if any(band.without_interval for band in advised):
        lines.append(
            "without interval (printed averages, too few samples): gains from "
            f"{rules.minimum_printed_gain:.0%} on are told, as hints; measure more to be certain"
        )
    if rules.reproducible:
        lines.append(
            "advised are only choices that give equal bits at all sizes; a gain below zero is their price"
        )
    told = plural(len(advised), "band")
    return [*lines, f"{told} with advice; nothing is said of sizes that were not measured"]


def _band_row(band: Band) -> tuple[str, str, str]:
    """Sizes of a band, what is advised there, and why."""
    sizes = " - ".join(dict.fromkeys(map(format_size, (band.low_bytes, band.high_bytes))))
    if band.choice is None:
        return (
            sizes,
            "keep the default" if KEPT in band.why else "as it is",
            plain(band.why, 400),
        )
    rival = band.rivals[0].label if len(band.rivals) == 1 else "several"
    gain = gain_text(band.smallest_gain)
    if band.largest_gain is not None and band.largest_gain != band.smallest_gain:
        gain += f" to {format_change(band.largest_gain.median)}"
    words = [f"instead of {rival}", gain]
    if band.bridged_bytes:
        words.append(f"at {len(band.bridged_bytes)} sizes not told apart")
    words += ["without interval"] if band.without_interval else []
    return sizes, plain(band.choice.label), plain(", ".join(words), 400)


def gain_text(gain: Gain | None) -> str:
    """``+12.3% (+10.1% to +14.0%)``: median and interval of the gain in speed."""
    if gain is None:
        return ""
    text = format_change(gain.median)
    if gain.low is not None and gain.high is not None:
        text += f" ({format_change(gain.low)} to {format_change(gain.high)})"
    return text


def advice_document(advice: Sequence[Advice], rules: Rules | None = None) -> dict[str, Any]:
    """``advice`` as JSON: sizes in bytes, gains as fractions (time of the rival over the choice's minus one).

    A size is null where a source does not state it.
    """
    rules = rules or Rules()
    return {
        "version": DOCUMENT_VERSION,
        **values_of(rules, "minimum_gain", "minimum_printed_gain"),
        "confidence": CONFIDENCE,
        "reproducible": rules.reproducible,
        "situations": [
            {
                **{
                    name: value
                    for name, value in vars(part.situation).items()
                    if name != "place"
                },
                "nodes": part.situation.nodes or None,
                "machine": part.situation.place,
                "bands": [_band_document(band) for band in part.bands],
                **values_of(part, "simulated", "flags"),
            }
            for part in advice
        ],
    }


def _band_document(band: Band) -> dict[str, Any]:
    return {
        "sizes_bytes": list(band.sizes_bytes),
        "choice": _choice_document(band.choice),
        "instead_of": _choice_document(band.rivals[0] if len(band.rivals) == 1 else None),
        "smallest_gain": band.smallest_gain and asdict(band.smallest_gain),
        "largest_gain": band.largest_gain and asdict(band.largest_gain),
        "reason": band.why,
        **values_of(band, "low_bytes", "high_bytes", "bridged_bytes", "without_interval"),
    }


def _choice_document(choice: Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    names = ("backend", "algorithm", "protocol", "channels", "label")
    axes = (axis.name for axis in SETTINGS_OF_LIBRARIES)
    settings = dict(zip(axes, choice.settings, strict=True))
    return values_of(choice, *names) | settings
