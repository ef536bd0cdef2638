"""The kernels' sources: entries, the algorithms that they are, and the program text of one instance of one.

An entry is called ``<algorithm>_<collective>``, or as its collective (``barrier``). One whose name holds no
collective interprets schedules, and stands for an algorithm ``schedule:<name>`` of every schedule there is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from ccbench.backends.kernels.abi import COPY_TYPES, TYPE_BYTES, op_number, type_number
from ccbench.backends.kernels.plans import PLANNERS
from ccbench.cases import ALL_GROUPS, Case
from ccbench.collectives import COLLECTIVES, collective
from ccbench.dtypes import EXACT_LIMIT
from ccbench.errors import CcbenchError, UsageError
from ccbench.schedules import algorithm_row, algorithms_of, parse_algorithm
from ccbench.suite.documents import shipped_folder

GLOBAL_NAME = "ccb_kernel"
"""What the one ``__global__`` function of a program is called."""

_ENTRY = re.compile(r"^CCB_ENTRY\((\w+), (REDUCES|COPIES)\)$", re.MULTILINE)


@dataclass(frozen=True)
class KernelEntry:
    """One launchable function. reduces: it combines elements, so type and op matter; else only their size."""

    name: str
    file: str
    reduces: bool


@dataclass(frozen=True)
class Program:
    """What a run-time compiler is given: the text, the files it includes by name, the options without the
    architecture."""

    text: str
    headers: Mapping[str, str]
    options: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Changes when anything does that the compiled code depends on, architecture and compiler aside."""
        parts = [
            self.text,
            *self.options,
            *(f"{name}\0{self.headers[name]}" for name in sorted(self.headers)),
        ]
        return hashlib.sha256("\1".join(parts).encode()).hexdigest()


def kernel_folder() -> Path:
    """Where the sources lie."""
    return shipped_folder("kernels")


@lru_cache(maxsize=1)
def entries() -> Mapping[str, KernelEntry]:
    """Every entry of every shipped ``.cu`` file, by name; read once."""
    found: dict[str, KernelEntry] = {}
    for file in sorted(kernel_folder().glob("*.cu")):
        for name, kind in _ENTRY.findall(file.read_text(encoding="utf-8")):
            found[name] = KernelEntry(name, file.name, kind == "REDUCES")
    return found


def entry_named(name: str) -> KernelEntry:
    """The entry called ``name``; UsageError lists the names when there is none."""
    known = entries()
    if name not in known:
        raise UsageError(f"kernel: {name!r} is not known; one of {', '.join(known)}")
    return known[name]


def instance(entry: KernelEntry, dtype: str, op: str) -> tuple[str, str]:
    """The (dtype, op) that ``entry`` is compiled for to serve these: copies need the size only."""
    type_number(dtype), op_number(op)
    return (dtype, op) if entry.reduces else (COPY_TYPES[TYPE_BYTES[dtype]], "sum")


def program(entry: KernelEntry, dtype: str, op: str, folder: Path | None = None) -> Program:
    """The program of one instance. It needs no file on disk: headers are given by name.

    Never add -ftz=true or -use_fast_math: subnormal numbers count.
    """
    folder = folder or kernel_folder()
    dtype, op = instance(entry, dtype, op)
    files = [*folder.glob("*.cuh"), folder / entry.file]
    headers = {file.name: file.read_text(encoding="utf-8") for file in files}
    text = f'#include "{entry.file}"\nCCB_GLOBAL({entry.name})\n'
    options = ("-std=c++17", f"-DCCB_TYPE={type_number(dtype)}", f"-DCCB_OP={op_number(op)}")
    return Program(text, headers, options)


INTERPRETED = "schedule"

PREFERRED = (
    (32 << 10, ("ll", "mesh_one_shot", "mesh", "barrier", "tree", "ring")),
    (4 << 20, ("mesh_two_shot", "mesh_one_shot", "mesh", "ring", "tree")),
    (1 << 62, ("ring", "mesh_two_shot", "mesh", "tree")),
)
"""(up to this size in bytes, algorithms by preference): what ``default`` stands for. One-shot and low-latency
protocols win below some hundred KiB, two-shot to some MiB, rings above (vLLM pull requests 24111, 42324)."""


@dataclass(frozen=True)
class KernelChoice:
    """What runs: the entry, the algorithm's name in a suite, and the schedule for an interpreting entry."""

    entry: KernelEntry
    algorithm: str
    schedule: str = ""


def split_name(entry_name: str) -> tuple[str, str]:
    """(algorithm, collective) of an entry's name; the collective is empty where the name holds none."""
    if entry_name in COLLECTIVES:
        return entry_name, entry_name
    fitting = [name for name in COLLECTIVES if entry_name.endswith(f"_{name}")]
    if not fitting:
        return entry_name, ""
    longest = max(fitting, key=len)  # ring_all_reduce ends with _reduce too
    return entry_name[: -len(longest) - 1], longest


def kernel_algorithms(collective_name: str) -> tuple[str, ...]:
    """Algorithms that there are kernels for, in the order of their files."""
    names = []
    interpreted = False
    for entry in entries().values():
        algorithm, of = split_name(entry.name)
        if of == collective_name:
            names.append(algorithm)
        interpreted |= not of and entry.name == INTERPRETED and entry.file in PLANNERS
    if interpreted:
        names += [f"{INTERPRETED}:{name}" for name in algorithms_of(collective_name)]
    return tuple(names)


def choose(case: Case) -> KernelChoice:
    """What runs for ``case``, ``default`` resolved; UsageError when there is no such kernel."""
    known = kernel_algorithms(case.collective)
    algorithm = case.algorithm
    if algorithm == "default":
        algorithm = _default(case, known)
    head, _, schedule = algorithm.partition(":")
    if schedule and head == INTERPRETED and any(name.startswith(f"{INTERPRETED}:") for name in known):
        name, parameter = parse_algorithm(schedule)
        if f"{head}:{name}" not in known:
            there_are = ", ".join(one for one in known if one.startswith(f"{INTERPRETED}:"))
            raise UsageError(f"no schedule {name!r} of {case.collective}; there are {there_are}")
        row = algorithm_row(case.collective, name)
        if parameter is not None and not row.parameter:
            raise UsageError(f"{algorithm}: {name} has no parameter; write '{head}:{name}'")
        asked = row.default_parameter(case.ranks, case.size_bytes) if parameter is None else parameter
        reason = row.unsupported(case.ranks, asked)
        if reason:
            raise UsageError(f"{algorithm}: {reason}")
        return KernelChoice(entries()[INTERPRETED], algorithm, schedule)
    if algorithm not in known:
        raise UsageError(
            f"no kernel runs {case.collective} as {algorithm!r}; "
            + (f"there are {', '.join(known)}" if known else "there is none for this collective")
        )
    return KernelChoice(_entry(case.collective, algorithm), algorithm)


def _entry(collective_name: str, algorithm: str) -> KernelEntry:
    return next(one for one in entries().values() if split_name(one.name) == (algorithm, collective_name))


def _default(case: Case, known: tuple[str, ...]) -> str:
    preferred: tuple[str, ...] = next(names for limit, names in PREFERRED if case.size_bytes <= limit)
    for name in (*preferred, *known):
        if name in known:
            return name
    return "default"


def unsupported(case: Case) -> str | None:
    """Why no kernel can run ``case``, which the backend's capabilities allow; None where one can."""
    try:
        row = collective(case.collective)
        case = replace(case, ranks=case.group_ranks, groups="", active_group=ALL_GROUPS)
        choose(case)
    except CcbenchError as error:
        return str(error)
    if case.nodes != 1:
        return f"{case.nodes} nodes: these kernels write into each other's memory, on one node"
    if row.reduces and case.op in ("sum", "avg") and case.ranks > EXACT_LIMIT[case.dtype]:
        return (
            f"{case.op} over {case.ranks} ranks cannot be checked: {case.dtype} holds no such number exactly"
        )
    return None
