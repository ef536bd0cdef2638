"""What a log asked of a collective library: collective, algorithm, protocol, version."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.importing.log import ImportedLog, ImportedTable
from ccbench.importing.pricing import gpus_per_process
from ccbench.model.library.system import ALGORITHMS, PROTOCOLS, LibraryRequest

TOOLS = frozenset(
    {"nccl-tests", "rccl-tests", "hccl_test", "torch-all-reduce-bench", "param", "markdown-table"}
)
"""Tools that measure a GPU maker's collective library; the others measure something the model is not of."""

LIBRARIES = frozenset({"", "NCCL", "RCCL", "HCCL"})

_ALGORITHMS = {
    "collnetdirect": "collnet",
    "collnetchain": "collnet",
    **{name: name for name in ALGORITHMS},
}
_ASSIGNMENTS = re.compile(r"\s*(?:[A-Z][A-Z0-9_]*=\S+[\s,;]*)+")
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=([^\s;]*[^\s;,])")
_NO_NVLS = re.compile(r"(?:^|[;(,])\s*(?:no NVLS|NVLS (?:is )?(?:off|disabled))", re.IGNORECASE)
_VERSION = re.compile(r"(?:[NR]CCL )?([0-9]{1,3})\.([0-9]{1,3})(?:\.([0-9]{1,3}))?")


@dataclass(frozen=True)
class Stated:
    """What a log's collector says of it, in words; "" where nothing."""

    collective: str = ""
    forced: str = ""
    interconnect: str = ""
    nccl_version: str = ""


@dataclass(frozen=True)
class Asked:
    """What a table's rows share; the meanings are those of LibraryRequest."""

    collective: str
    algorithm: str
    protocol: str
    multicast_off: bool
    gpus_per_process: int
    version: tuple[int, ...]

    def request(self, size_bytes: Iterable[int], dtype: str, in_place: bool) -> LibraryRequest:
        """This at ``size_bytes``, in their order; an element type that is not known counts as 4 bytes."""
        return LibraryRequest(
            size_bytes=tuple(size_bytes),
            item_bytes=ITEM_BYTES.get(dtype, 4),
            floating_8_bit="float8" in dtype or "fp8" in dtype,
            in_place=in_place,
            **vars(self),
        )


def asked_of(stated: Stated, log: ImportedLog, table: ImportedTable) -> Asked | str:
    """What ``table`` asked of the library, or why the model does not know such a thing."""
    if log.tool not in TOOLS or log.library not in LIBRARIES:
        what = log.library or log.tool
        return f"measured with {log.tool}: {what} is no collective library that the model describes"
    collective = table.collective or stated.collective
    if collective not in COLLECTIVES or not COLLECTIVES[collective].moves_data:
        return f"the collective is not known ({collective or 'neither the log nor the manifest names one'})"
    variables = {**_assigned(stated.forced), **log.environment, **_of_table(table)}
    algorithm = _one_of(_ALGORITHMS, table.algorithm, _algorithm_of(variables))
    protocol = _one_of({name: name for name in PROTOCOLS}, table.protocol, variables.get("NCCL_PROTO", ""))
    if algorithm is None or protocol is None:
        words = [
            *_unknown(algorithm, table.algorithm, "NCCL_ALGO", variables),
            *_unknown(protocol, table.protocol, "NCCL_PROTO", variables),
        ]
        return f"{' and '.join(words)}: nothing that the model describes"
    return Asked(
        collective,
        algorithm,
        protocol,
        _without_nvls(stated, variables),
        gpus_per_process(log, table),
        _version(stated, log),
    )


def _assigned(words: str) -> dict[str, str]:
    """Variables of words that are nothing but assignments; prose about a column forces nothing."""
    return dict(_ASSIGNMENT.findall(words)) if _ASSIGNMENTS.fullmatch(words) else {}


def _of_table(table: ImportedTable) -> dict[str, str]:
    given = table.facts.get("environment")
    found = {str(name): str(value) for name, value in given.items()} if isinstance(given, Mapping) else {}
    if re.search(r"NVLS (?:off|disabled)|no NVLS", str(table.facts.get("variant", "")), re.IGNORECASE):
        found["NCCL_NVLS_ENABLE"] = "0"
    return found


def _algorithm_of(variables: Mapping[str, str]) -> str:
    # NCCL 2.4: trees from this size on; 0 switches them off (NVIDIA/nccl release notes of 2.4).
    old = "ring" if variables.get("NCCL_TREE_THRESHOLD") == "0" else ""
    return variables.get("NCCL_ALGO", old)


def _without_nvls(stated: Stated, variables: Mapping[str, str]) -> bool:
    """Whether multicast is switched off, by a variable, by the list of algorithms, or in words.

    Of lists, ``Ring,Tree`` has none, and neither has ``^NVLS,NVLSTree``, which is all but those.
    """
    algorithms = variables.get("NCCL_ALGO", "").lower()
    listed = bool(algorithms) and ("nvls" in algorithms) is algorithms.startswith("^")
    told = any(_NO_NVLS.search(words) for words in (stated.forced, stated.interconnect))
    return listed or told or variables.get("NCCL_NVLS_ENABLE") == "0"


def _unknown(found: str | None, of_table: str, variable: str, variables: Mapping[str, str]) -> list[str]:
    """The word, or the variable with its value, that was not understood."""
    if found is not None:
        return []
    return [of_table if of_table != "default" else f"{variable}={variables.get(variable, '')}"]


def _one_of(known: Mapping[str, str], of_table: str, of_variables: str) -> str | None:
    """``default`` where nothing, or several, are asked for; None for what is not known."""
    if of_table != "default":
        return known.get(of_table.lower())
    word = of_variables.lower()
    if not word or "," in word or word.startswith("^"):
        return "default"
    return known.get(word)


def _version(stated: Stated, log: ImportedLog) -> tuple[int, ...]:
    for text in (stated.nccl_version, log.versions.get("NCCL", ""), log.versions.get("RCCL", "")):
        found = _VERSION.match(text)
        if found is not None:
            return tuple(int(part) for part in found.groups() if part is not None)
    return ()
