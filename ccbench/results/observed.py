"""A run or a log becomes observations of a collective library: what was asked of it, and how long it took.

Calibration fits a machine to them, and scores hold the model against them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ccbench.cases.capabilities import capabilities_of
from ccbench.cases.measurement import Status
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import UsageError
from ccbench.model.library import ALGORITHMS, PROTOCOLS, LibraryRequest
from ccbench.readers.benchmarks.log import ImportedLog, ImportedTable
from ccbench.results import Manifest, Point, Run
from ccbench.results.keys import CURVE, grouped
from ccbench.results.systems import (
    gpus_per_process,
    machines_of,
    path_recorded,
    version_in,
    versions_of,
)
from ccbench.topology.words import said_and_denied
from ccbench.units import plural

TOOLS = frozenset(
    {
        "nccl-tests",
        "rccl-tests",
        "hccl_test",
        "torch-all-reduce-bench",
        "param",
    }
)
"""Tools that measure a GPU maker's collective library; the others measure something the model is not of."""

LIBRARIES = frozenset({"", "NCCL", "RCCL", "HCCL"})

_MODELLED_AS = {"collnetdirect": "collnet", "collnetchain": "collnet"}
_ASSIGNMENTS = re.compile(r"\s*(?:[A-Z][A-Z0-9_]*=\S+[\s,;]*)+")
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=([^\s;]*[^\s;,])")


@dataclass(frozen=True)
class Stated:
    """Words of a log's collector about it; "" where there are none."""

    collective: str = ""
    forced: str = ""
    interconnect: str = ""
    nccl_version: str = ""


def asked_of(stated: Stated, log: ImportedLog, table: ImportedTable) -> LibraryRequest | str:
    """Return what ``table`` asked of the library, without sizes; or why the model does not know it."""
    if log.tool not in TOOLS or log.library not in LIBRARIES:
        what = log.library or log.tool
        return f"measured with {log.tool}: {what} is no collective library that the model describes"
    collective = table.collective or stated.collective
    if collective not in COLLECTIVES or not COLLECTIVES[collective].moves_data:
        return f"the collective is not known ({collective or 'neither the log nor the manifest names one'})"
    # What the collector says counts only where it is nothing but assignments: prose forces nothing.
    forced = (
        dict(_ASSIGNMENT.findall(stated.forced))
        if _ASSIGNMENTS.fullmatch(stated.forced)
        else {}
    )
    own = table.facts.get("environment")
    of_table = (
        {str(name): str(value) for name, value in own.items()}
        if isinstance(own, Mapping)
        else {}
    )
    variables = {**forced, **log.environment, **of_table}
    if variables.get("NCCL_TREE_THRESHOLD") == "0":
        # NCCL 2.4: trees from this size on; 0 switches them off (NVIDIA/nccl release notes of 2.4).
        variables.setdefault("NCCL_ALGO", "ring")
    unknown: list[str] = []
    chosen: dict[str, Any] = {}
    for name, variable, stated_word, known in (
        ("algorithm", "NCCL_ALGO", table.algorithm, ALGORITHMS),
        ("protocol", "NCCL_PROTO", table.protocol, PROTOCOLS),
    ):
        is_open = stated_word == "default"
        word = variables.get(variable, "") if is_open else stated_word
        # Where several are allowed, or some are not, the choice is still the library's.
        if is_open and (not word or "," in word or word.startswith("^")):
            chosen[name] = "default"
        elif (modelled := _MODELLED_AS.get(word.lower(), word.lower())) in known:
            chosen[name] = modelled
        else:
            unknown.append(f"{variable}={word}" if is_open else word)
    if unknown:
        return f"{' and '.join(unknown)}: nothing that the model describes"
    # Of lists of algorithms, "Ring,Tree" has no multicast, and neither has "^NVLS,NVLSTree".
    listed = variables.get("NCCL_ALGO", "").lower()
    off = bool(listed) and ("nvls" in listed) is listed.startswith("^")
    prose = (stated.forced, stated.interconnect)
    off = off or any("nvls" in said_and_denied(words)[1].lower() for words in prose)
    launched_on = gpus_per_process(log, table)
    return LibraryRequest(
        collective,
        (),
        **chosen,
        multicast_off=off or variables.get("NCCL_NVLS_ENABLE") == "0",
        gpus_per_process=launched_on or 1,
        version=version_in(stated.nccl_version, *versions_of(log)),
        launch_known=launched_on is not None,
    )


def sized(
    request: LibraryRequest, size_bytes: Iterable[int], dtype: str, in_place: bool
) -> LibraryRequest:
    """``request`` at these sizes, in their order; an element type that is not known counts as 4 bytes."""
    return replace(
        request,
        size_bytes=tuple(size_bytes),
        item_bytes=ITEM_BYTES.get(dtype, 4),
        floating_8_bit="float8" in dtype or "fp8" in dtype,
        in_place=in_place,
    )


@dataclass(frozen=True)
class RunPoints:
    """Points of one system in a run.

    nodes: 0 where the run does not say. devices: models as the run names them. library: what was measured,
    with its version where known. left_out: why rows are not among ``requests``, with how many they are.
    path: what the rows' logs show of the path between GPUs (``path_recorded``).
    """

    ranks: int
    nodes: int
    devices: tuple[str, ...]
    library: str
    requests: tuple[tuple[LibraryRequest, tuple[float, ...]], ...]
    left_out: tuple[str, ...]
    path: Mapping[str, str] = field(default_factory=dict)


def run_points(run: Run, ranks: int | None = None, nodes: int | None = None) -> RunPoints:
    """Every healthy point of a library that ``run`` holds of one system: ``ranks`` on ``nodes``.

    Rows that are not ok, flagged, of size 0, or of what the model does not describe are left out and counted.
    Raises UsageError when no row is left, or when several systems are, with the options that choose one.
    """
    reasons: Counter[str] = Counter()
    healthy: list[Point] = []
    for point in run.points:
        doubts = {
            f"status {point.status.value}": point.status is not Status.OK,
            f"flagged {', '.join(sorted(point.flags))}": not point.trusted,
            "of size 0": point.size_bytes <= 0,
            "without a time": not point.is_timed,
            "of one rank, which sends nothing": point.ranks < 2,
            "simulated": point.simulated,
        }
        if reason := next((reason for reason, is_so in doubts.items() if is_so), ""):
            reasons[reason] += 1
        else:
            healthy.append(point)
    # Rows of one request to the model: a line of one table.
    requested = []
    for group in grouped(healthy, CURVE.beside("source", "source_table")).values():
        library_request = request_of(run.manifest, group[0])
        if isinstance(library_request, str):
            reasons[library_request] += len(group)
        else:
            requested.append((library_request, group))
    left_out = tuple(f"{plural(count, 'row')}: {reason}" for reason, count in reasons.items())
    if not requested:
        reason_texts = "; ".join(left_out) or "it has no rows"
        raise UsageError(
            f"{run.path}: nothing to fit to ({reason_texts}); name a run of NCCL, RCCL or HCCL, measured or "
            "imported"
        )
    ranks, nodes = _one_system(
        run, [point for _, group in requested for point in group], ranks, nodes
    )
    requests = []
    every: list[Point] = []
    for library_request, group in requested:
        chosen = [
            point for point in group if point.ranks == ranks and point.nodes in (0, nodes)
        ]
        if chosen:
            sizes = [point.size_bytes for point in chosen]
            request = sized(library_request, sizes, group[0].dtype, group[0].in_place)
            requests.append((request, tuple(point.median_seconds or 0.0 for point in chosen)))
            every += chosen
    devices = tuple(dict.fromkeys(point.device_model for point in every if point.device_model))
    library = ", ".join(
        dict.fromkeys(point.backend_version or point.backend for point in every)
    )
    # Sorted, SHM comes after P2P: one channel through host memory decides.
    path = dict(sorted(pair for point in every for pair in path_recorded(run.manifest, point)))
    return RunPoints(ranks, nodes, devices, library, tuple(requests), left_out, path)


def request_of(manifest: Manifest, point: Point) -> LibraryRequest | str:
    """Return what the table of ``point`` asked, without sizes, by what run.json keeps of it."""
    library = capabilities_of(point.backend).library
    if not library and point.backend != point.tool:
        return f"measured with {point.backend}, which is no collective library that the model describes"
    kept = manifest.imported(point.source)
    environment = (
        kept.mapping("environment")
        if point.tool
        else manifest.mapping("environment", "variables")
    )
    tables = kept.mappings("tables")
    # A line that is there twice counts as in a further table.
    facts: Mapping[str, Any] = {} if point.tool else {"gpus_per_thread": 1}
    if tables:
        facts = Manifest(tables[(point.source_table - 1) % len(tables)]).mapping("facts")
    table = ImportedTable(
        point.collective, (), algorithm=point.algorithm, protocol=point.protocol, facts=facts
    )
    log = ImportedLog(
        point.tool or "nccl-tests",  # as which ccbench asks a library
        library=library,
        tables=(table,),
        environment={str(name): str(value) for name, value in environment.items()},
        facts=kept.mapping("facts"),
    )
    version = re.search(r"[0-9]+\.[0-9]+(?:\.[0-9]+)?", point.backend_version)
    return asked_of(Stated(nccl_version=version[0] if version else ""), log, table)


def _one_system(
    run: Run, points: Sequence[Point], ranks: int | None, nodes: int | None
) -> tuple[int, int]:
    """Ranks and nodes of the one system that is left; nodes is 0 where nobody says."""

    def listed(counts: Sequence[int]) -> str:
        return ", ".join(map(str, counts))

    def only(counts: Sequence[int], what: str) -> int:
        if len(counts) > 1:
            cure = f"choose one, such as --{what} {counts[-1]}"
            raise UsageError(f"{run.path}: holds runs on {listed(counts)} {what}; {cure}")
        return counts[0]

    counts = sorted({point.ranks for point in points})
    if ranks is not None and ranks not in counts:
        held = f"{run.path} holds points on {listed(counts)} ranks"
        raise UsageError(f"--ranks {ranks}: {held}; choose of these")
    ranks = only(counts, "ranks") if ranks is None else ranks
    mine = [point for point in points if point.ranks == ranks]
    spread = sorted({point.nodes for point in mine if point.nodes})
    if nodes is not None and spread and nodes not in spread:
        held = f"{run.path} holds points of {ranks} ranks on {listed(spread)} nodes"
        raise UsageError(f"--nodes {nodes}: {held}")
    if nodes is None:
        nodes = only(spread, "nodes") if spread else 0
    devices = sorted({point.device_model for point in mine if point.device_model})
    if len(devices) > 1:
        raise UsageError(
            f"{run.path}: holds runs of several machines ({'; '.join(devices)}); import those of one alone"
        )
    return ranks, nodes


def recorded_machine(run: Run, points: RunPoints) -> tuple[str, str]:
    """The catalog's name of the machine, and where that is from: the run's machine, else its devices.

    Raises UsageError where the run names none of the catalog and its devices are of none, or of several.
    """
    from ccbench.topology.files import catalog_names, load_catalog

    named = run.manifest.machine
    if named in catalog_names() and load_catalog(named).gpus:
        return named, "which the run names"
    # Machines of the catalog with GPUs of the run's model, and enough of them.
    each = points.ranks // max(1, points.nodes)
    fitting = machines_of(points.devices[0], each, each - 1) if len(points.devices) == 1 else ()
    if len(fitting) == 1:
        return fitting[0], f"assumed from the run's devices ({points.devices[0]})"
    names = f"it names {named!r}" if named else "it names none"
    if points.devices:
        names += f"; its devices are {', '.join(points.devices)}"
    choice = (
        f", one of {', '.join(fitting)}"
        if fitting
        else " and, for several, --nodes and --network"
    )
    raise UsageError(
        f"{run.path}: does not say which machine it is of ({names}); give --machine{choice}"
    )
