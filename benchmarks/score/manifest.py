"""A manifest of published logs: for each file the words that say what machine it was measured on.

A YAML list of mappings (or one under ``logs``). Each has ``file`` (a path from the manifest's folder),
``gpu``, ``gpus_per_node``, ``nodes``, ``interconnect``, ``network`` and ``healthy``;
``collective``, ``forced``, ``datatype``, ``nccl_version`` and ``complete`` may be there. Other fields are the
collector's own.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccbench.documents import LARGEST_YAML_BYTES, parse_yaml
from ccbench.errors import MachineError, UsageError
from ccbench.results.observed import Stated
from ccbench.units import shown

REQUIRED = ("file", "gpu", "gpus_per_node", "nodes", "interconnect", "network", "healthy")

OPTIONAL = ("collective", "forced", "datatype", "nccl_version", "healthy_why", "complete")
"""Read where they are given. Other fields that are spelt nearly like one of these are taken for mistakes."""

MOST_NUMBER = 1_000_000
"""GPUs of a node, or nodes; more is damage."""

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}


@dataclass(frozen=True, kw_only=True)
class ManifestEntry(Stated):
    """One log and what its collector says about it.

    gpus_per_node, nodes: every number that the words leave possible; empty where they say none.
    healthy: None where the collector does not know. The rest as written, "" where not given.
    """

    file: str
    gpu: str
    gpus_per_node: tuple[int, ...]
    nodes: tuple[int, ...]
    network: str
    healthy: bool | None
    datatype: str = ""
    healthy_why: str = ""

    @property
    def machine_words(self) -> tuple[str, str, str]:
        """What two logs share when they are of one system, besides their ranks."""
        return (self.gpu, self.interconnect, self.network)


def read_manifest(path: str | Path) -> tuple[ManifestEntry, ...]:
    """The entries of a manifest, in order. Raises UsageError with file and place for anything wrong in it."""
    where = Path(path)
    try:
        with where.open("rb") as file:
            content = file.read(LARGEST_YAML_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(
            f"{where}: cannot be read ({reason}); name a manifest of logs"
        ) from None
    except ValueError:
        raise UsageError(f"{shown(str(path))}: is no path; name a manifest of logs") from None
    if len(content) > LARGEST_YAML_BYTES:
        raise UsageError(
            f"{where}: is larger than {LARGEST_YAML_BYTES} bytes; a manifest is not"
        )
    try:
        plain = parse_yaml(content.decode(), str(where))
    except UnicodeDecodeError:
        raise UsageError(f"{where}: is not UTF-8 text; a manifest is YAML") from None
    except MachineError as error:
        raise UsageError(str(error)) from None
    entries = plain.get("logs") if isinstance(plain, Mapping) else plain
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{where}: is not a list of logs; write '- file: ...' for each")
    return _each_once(
        where, [_entry(fields, f"{where}[{index}]") for index, fields in enumerate(entries)]
    )


def _each_once(where: Path, entries: list[ManifestEntry]) -> tuple[ManifestEntry, ...]:
    """The entries; a log that is there twice would count twice."""
    places: dict[str, int] = {}
    for index, entry in enumerate(entries):
        first = places.setdefault(os.path.normpath(entry.file), index)
        if first != index:
            raise UsageError(
                f"{where}[{index}]: {entry.file} is there already, as [{first}]; keep one"
            )
    return tuple(entries)


def _entry(fields: Any, place: str) -> ManifestEntry:
    if not isinstance(fields, Mapping):
        raise UsageError(
            f"{place}: {shown(fields)} is not a mapping; write '- file: ...' and its fields"
        )
    for name in REQUIRED:
        if fields.get(name) is None:
            raise UsageError(f"{place}: {name} is missing; give it")
    for name in fields:
        near = difflib.get_close_matches(
            str(name), [one for one in OPTIONAL if one not in fields], 1, 0.8
        )
        if near and name not in (*REQUIRED, *OPTIONAL):
            raise UsageError(
                f"{place}: {shown(name)} is not a field that is read; did you mean {near[0]}?"
            )
    return ManifestEntry(
        file=_file(fields["file"], place),
        gpu=_text(fields, "gpu", place),
        gpus_per_node=_numbers(fields["gpus_per_node"], f"{place}.gpus_per_node"),
        nodes=_numbers(fields["nodes"], f"{place}.nodes"),
        interconnect=_text(fields, "interconnect", place),
        network=_text(fields, "network", place),
        healthy=_healthy(fields["healthy"], f"{place}.healthy"),
        collective=_collective(_text(fields, "collective", place)),
        forced=_text(fields, "forced", place),
        datatype=_text(fields, "datatype", place),
        nccl_version=_text(fields, "nccl_version", place),
        healthy_why=_text(fields, "healthy_why", place),
    )


def _file(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{place}.file: {shown(value)} is not a file name; write one")
    return value


def _text(fields: Mapping[str, Any], name: str, place: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        raise UsageError(f"{place}.{name}: {shown(value)} is not text; write words")
    return str(value)


def _numbers(value: Any, place: str) -> tuple[int, ...]:
    """``8``; ``4,5,6,7,8``; ``1 and 4``; nothing of ``unknown (...)``; ``2`` of ``2 (posing as 4)``."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise UsageError(f"{place}: {shown(value)} is not a number; write one, or unknown")
    if isinstance(value, int):
        found: tuple[int, ...] = (value,)
    else:
        words = value.partition("(")[0]
        stated = re.match(r"\s*[0-9]{1,7}(?:\s*(?:,|and|or)\s*[0-9]{1,7})*", words)
        found = (
            tuple(int(number) for number in re.findall(r"[0-9]+", stated[0])) if stated else ()
        )
    if any(not 0 <= number <= MOST_NUMBER for number in found):
        raise UsageError(f"{place}: {shown(value)} is out of range; write 0 to {MOST_NUMBER}")
    return found


def _healthy(value: Any, place: str) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("unknown", "true", "false"):
        return {"true": True, "false": False}.get(value.lower())
    raise UsageError(f"{place}: {shown(value)} is not known; write true, false or unknown")


def _collective(words: str) -> str:
    """ccbench's name of the one collective that the words name; "" where they name several or none."""
    word = words.partition("(")[0].strip().lower().replace("-", "_")
    return "" if re.search(r"[,\s]", word) else _COLLECTIVES.get(word, word)
