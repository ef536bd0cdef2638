"""A run folder becomes observations of a collective library: what was asked of it, and how long it took.

What a log asked of a collective library: collective, algorithm, protocol, version.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ccbench.capabilities import capabilities_of
from ccbench.cases import Status
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import UsageError
from ccbench.model.library.system import ALGORITHMS, PROTOCOLS, LibraryRequest
from ccbench.results import Manifest, Point, Run
from ccbench.results.importers.log import ImportedLog, ImportedTable
from ccbench.results.importers.pricing import gpus_per_process
from ccbench.results.importers.same_machine import machines_with
from ccbench.units import plural

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


OWN_TOOL = "nccl-tests"
"""ccbench asks a library as nccl-tests does, so its own measurements are read as that tool's."""

GROUPED_BY = ("collective", "in_place", "dtype", "algorithm", "protocol", "backend", "source", "source_table")


@dataclass(frozen=True)
class RunPoints:
    """What a run says about one system.

    nodes: 0 where the run does not say. devices: models as the run names them. library: what was measured,
    with its version where known. left_out: why rows are not among ``requests``, with how many they are.
    """

    ranks: int
    nodes: int
    devices: tuple[str, ...]
    library: str
    requests: tuple[tuple[LibraryRequest, tuple[float, ...]], ...]
    left_out: tuple[str, ...]


def run_points(run: Run, ranks: int | None = None, nodes: int | None = None) -> RunPoints:
    """Every healthy point of a library that ``run`` holds of one system: ``ranks`` on ``nodes``.

    Rows that are not ok, flagged, of size 0, or of what the model does not describe are left out and counted.
    Raises UsageError when no row is left, or when several systems are, with the options that choose one.
    """
    reasons: Counter[str] = Counter()
    groups: dict[tuple[object, ...], list[Point]] = {}
    for point in run.points:
        reason = _unusable(point)
        if reason:
            reasons[reason] += 1
        else:
            groups.setdefault(tuple(getattr(point, name) for name in GROUPED_BY), []).append(point)
    known = []
    for group in groups.values():
        asked = _asked(run.manifest, group[0])
        if isinstance(asked, str):
            reasons[asked] += len(group)
        else:
            known.append((asked, group))
    told = tuple(f"{plural(count, 'row')}: {reason}" for reason, count in reasons.items())
    if not known:
        said = "; ".join(told) or "it has no rows"
        raise UsageError(
            f"{run.path}: nothing to calibrate with ({said}); name a run of NCCL, RCCL or HCCL, measured or "
            "imported"
        )
    ranks, nodes = _one_system(run, [point for _, group in known for point in group], ranks, nodes)
    chosen = [
        (asked, [point for point in group if point.ranks == ranks and point.nodes in (0, nodes)])
        for asked, group in known
    ]
    chosen = [(asked, group) for asked, group in chosen if group]
    every = [point for _, group in chosen for point in group]
    return RunPoints(
        ranks,
        nodes,
        tuple(dict.fromkeys(point.device_model for point in every if point.device_model)),
        ", ".join(dict.fromkeys(point.backend_version or point.backend for point in every)),
        tuple(
            (
                asked.request((point.size_bytes for point in group), group[0].dtype, group[0].in_place),
                tuple(point.median_seconds or 0.0 for point in group),
            )
            for asked, group in chosen
        ),
        told,
    )


def _unusable(point: Point) -> str:
    """Why a point says nothing of a library; empty where it does."""
    doubts = {
        f"status {point.status.value}": point.status is not Status.OK,
        f"flagged {', '.join(sorted(point.flags))}": not point.trusted,
        "of size 0": point.size_bytes <= 0,
        "without a time": not point.is_timed,
        "of one rank, which sends nothing": point.ranks < 2,
        "simulated": point.simulated,
    }
    return next((reason for reason, is_so in doubts.items() if is_so), "")


def _asked(manifest: Manifest, point: Point) -> Asked | str:
    """What the table of ``point`` asked of the library, by what run.json keeps of the log or the process."""
    library = capabilities_of(point.backend).library
    if not library and point.backend != point.tool:
        return f"measured with {point.backend}, which is no collective library that the model describes"
    files = (Manifest(one) for one in manifest.mappings("imported") if one.get("source") == point.source)
    kept = next(files, Manifest()) if point.imported else Manifest()
    environment = kept.mapping("environment") if point.tool else manifest.mapping("environment", "variables")
    tables = kept.mappings("tables")
    # A line that is there twice counts as in a further table.
    facts = Manifest(tables[(point.source_table - 1) % len(tables)]).mapping("facts") if tables else {}
    table = ImportedTable(
        point.collective, (), algorithm=point.algorithm, protocol=point.protocol, facts=facts
    )
    log = ImportedLog(
        point.tool or OWN_TOOL,
        library=library,
        tables=(table,),
        environment={str(name): str(value) for name, value in environment.items()},
        facts=kept.mapping("facts"),
    )
    version = re.search(r"[0-9]+\.[0-9]+(?:\.[0-9]+)?", point.backend_version)
    return asked_of(Stated(nccl_version=version[0] if version else ""), log, table)


def _one_system(run: Run, points: Sequence[Point], ranks: int | None, nodes: int | None) -> tuple[int, int]:
    """Ranks and nodes of the one system that is left; nodes is 0 where nobody says."""
    counts = sorted({point.ranks for point in points})
    if ranks is None and len(counts) > 1:
        listed = ", ".join(map(str, counts))
        raise UsageError(
            f"{run.path}: holds runs on {listed} ranks; choose one, such as --ranks {counts[-1]}"
        )
    if ranks is not None and ranks not in counts:
        listed = ", ".join(map(str, counts))
        raise UsageError(f"--ranks {ranks}: {run.path} holds points on {listed} ranks; choose of these")
    ranks = counts[0] if ranks is None else ranks
    mine = [point for point in points if point.ranks == ranks]
    spread = sorted({point.nodes for point in mine if point.nodes})
    if nodes is None and len(spread) > 1:
        listed = ", ".join(map(str, spread))
        raise UsageError(
            f"{run.path}: holds runs on {listed} nodes; choose one, such as --nodes {spread[-1]}"
        )
    if nodes is not None and spread and nodes not in spread:
        listed = ", ".join(map(str, spread))
        raise UsageError(f"--nodes {nodes}: {run.path} holds points of {ranks} ranks on {listed} nodes")
    devices = sorted({point.device_model for point in mine if point.device_model})
    if len(devices) > 1:
        raise UsageError(
            f"{run.path}: holds runs of several machines ({'; '.join(devices)}); import those of one alone"
        )
    return ranks, nodes if nodes is not None else (spread[0] if spread else 0)


def recorded_machine(run: Run, points: RunPoints) -> tuple[str, str]:
    """The catalog's name of the machine, and where that is from: the run's machine, else its devices.

    Raises UsageError where the run names none of the catalog and its devices are of none, or of several.
    """
    from ccbench.topology.catalog import catalog_names, load_catalog

    named = run.manifest.machine
    if named in catalog_names() and load_catalog(named).gpus:
        return named, "which the run names"
    fitting = _catalog_machines(points)
    if len(fitting) == 1:
        return fitting[0], f"assumed from the run's devices ({points.devices[0]})"
    seen = f"it names {named!r}" if named else "it names none"
    if points.devices:
        seen += f"; its devices are {', '.join(points.devices)}"
    choice = f", one of {', '.join(fitting)}" if fitting else " and, for several, --nodes and --network"
    raise UsageError(f"{run.path}: does not say which machine it is of ({seen}); give --machine{choice}")


def _catalog_machines(points: RunPoints) -> list[str]:
    """Machines of the catalog with GPUs of the run's model, and enough of them."""
    from ccbench.topology.catalog import load_catalog

    if len(points.devices) != 1:
        return []
    per_node = points.ranks // max(1, points.nodes)
    return [name for name in machines_with(points.devices[0]) if len(load_catalog(name).gpus) >= per_node]
