"""Lines, numbers and words of other tools, launchers and collective libraries, in ccbench's own.

Forms: github.com/NVIDIA/nccl-tests src/common.cu; github.com/ROCm/rccl-tests src/common.cu; NCCL_DEBUG output
as in NVIDIA/nccl src/debug.cc, src/init.cc, src/graph/tuning.cc.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ccbench.cases.axes import UNEVEN
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.findings import SourceWarning
from ccbench.flags import Flag
from ccbench.readers.lines import PrintedFigure, plain, without_tags

LONGEST_LINE = 4096
"""Characters of a line that are looked at; no tool here prints a longer one."""

MOST_WARNINGS = 100
"""Remarks that are kept of one text; whoever has more lines that do not fit has another form."""

# -- lines --------------------------------------------------------------------------------------------------

_MESSAGE = re.compile(
    r"(?:[\w.-]{1,80}:\d{1,10}:\d{1,10} )?\[\d{1,5}\] (?:NCCL|RCCL|MCCL) (?:INFO|WARN|TRACE|ERROR)\b"
)


@dataclass(frozen=True)
class LogLine:
    """One line. number: 1-based, of the source. text: without tags, colours and the end of the line.

    unfinished: it is the last line and has no end. message: it is one of a library's debug output.
    """

    number: int
    text: str
    unfinished: bool = False
    message: bool = False


def source_lines(text: str) -> Iterator[LogLine]:
    """Every line that is not blank; longer ones than LONGEST_LINE are cut there.

    A message of a library is a line of its own, also where another thread wrote it behind something else.
    """
    raws = text.split("\n")
    for number, raw in enumerate(raws, start=1):
        if not raw or raw.isspace():
            continue
        unfinished = number == len(raws)
        bare = without_tags(plain(raw[:LONGEST_LINE]).rstrip())
        message = _MESSAGE.search(bare) if "CCL " in bare else None
        before = bare[: message.start()] if message else bare
        if before and not (message and before.isspace()):
            yield LogLine(number, before, unfinished)
        if message:
            yield LogLine(number, bare[message.start() :], unfinished, message=True)


def no_row(line: LogLine) -> SourceWarning:
    """The warning that ``line`` stands where a row should and is none."""
    return SourceWarning(
        "damaged_line", f"no row of its table: {line.text.strip()[:80]!r}", line.number
    )


def capped(warnings: Sequence[SourceWarning]) -> tuple[SourceWarning, ...]:
    """The first MOST_WARNINGS of ``warnings``, and how many more there were."""
    if len(warnings) <= MOST_WARNINGS:
        return tuple(warnings)
    more = SourceWarning(
        "damaged_line", f"{len(warnings) - MOST_WARNINGS} more warnings were left out"
    )
    return (*warnings[:MOST_WARNINGS], more)


# -- endings ------------------------------------------------------------------------------------------------

_HUNG = re.compile(
    r"watchdog caught collective|timed out|due to time limit|exceeded the time limit|test timeout \(\d"
    r"|timeout waiting for|timeout: sending signal|walltime .{0,60}exceeded|TERM_RUNLIMIT",
    re.IGNORECASE,
)
_CRASHED = re.compile(
    r"segmentation fault|segfault|mpi_abort was invoked|caught signal|exited on signal"
    r"|process received signal|\bsignal: \w|bus error|core dumped|out of memory|terminate called after"
    r"|unhandled (?:cuda|system) error|cuda failure|test (?:nccl|cuda|hip) failure|\btest failure\b"
    r"|traceback \(most recent call last\)|invalid number of gpus:|process(?:es)? exited with non-zero"
    r"|\bexit(?:ed|ing)?(?: with)?(?: exit)? (?:code|status)[ :=]{1,3}[1-9]"
    r"|due to node failure|\babort\([1-9]\d{0,9}\)|processes terminated badly|DistBackendError"
    r"|double free or corruption|\b(?:free|munmap_chunk|malloc|realloc)\(\): \w",
    re.IGNORECASE,
)
_KILLED = re.compile(
    r"(?:^|: |\d )\s{0,20}(?:killed|terminated)(?:\s{2}|\s{0,20}$)|oom_kill event"
    r"|\*\*\* (?:job|step) .{1,80} cancelled|PBS: job killed|TERM_[A-Z]{3,20}: job killed",
    re.IGNORECASE,
)
"""Whoever stops a hanging job kills its processes, so that these are crashes only where nothing hung."""


def failures(lines: Iterable[LogLine]) -> tuple[str, str]:
    """(hang, crash): the first line that reports each, quoted with its number; "" where none does."""
    patterns = {"hang": _HUNG, "crash": _CRASHED, "kill": _KILLED}
    ends: dict[str, str] = {}
    for line in lines:
        ending = next(
            (name for name, pattern in patterns.items() if pattern.search(line.text)), None
        )
        if ending is not None:
            ends.setdefault(ending, f"line {line.number}: {line.text.strip()[:200]}")
    hang = ends.get("hang", "")
    return hang, ends.get("crash", "" if hang else ends.get("kill", ""))


# -- numbers ------------------------------------------------------------------------------------------------

GIBI = 2**30 / 1e9
"""A rate in 2^30 bytes per second times this is one in 1e9 bytes per second."""

LARGEST_SIZE = 2**62
"""Bytes; a larger figure is no size."""

_WHOLE = re.compile(
    r"[0-9]{1,20}|[0-9][0-9_]{1,26}[0-9]|[0-9]{1,3}(?:,[0-9]{3}){1,6}", re.ASCII
)


def whole(text: str) -> int | None:
    """The size or count ``text`` is (1048576, 1_048_576, 1,024); None for all but 0 to LARGEST_SIZE."""
    match = _WHOLE.fullmatch(text.strip())
    value = int(match[0].replace("_", "").replace(",", "")) if match else None
    return value if value is not None and value <= LARGEST_SIZE else None


def is_rate(
    size_bytes: float, seconds: PrintedFigure, rate: PrintedFigure, slack: float
) -> bool:
    """Return whether ``rate`` can be ``size_bytes`` / ``seconds`` in 1e9 bytes per second, given the digits.

    slack: relative room beyond the printed rounding: tools may compute rates from times that they rounded.
    """
    gigabytes = size_bytes / 1e9
    room = seconds.half_unit * (rate.value + rate.half_unit) + seconds.value * rate.half_unit
    return abs(seconds.value * rate.value - gigabytes) <= room + slack * gigabytes


def rate_factor(
    points: Iterable[tuple[int, PrintedFigure, PrintedFigure]], default: float
) -> float:
    """Return the factor from printed rates to 1e9 bytes per second: 1 or GIBI.

    Some tools write GB/s for 2^30 bytes per second, and some changed their mind. points: (bytes, seconds,
    printed rate) of rows whose rate is bytes / seconds; those whose rounding leaves both open do not vote.
    default: where no row tells.
    """
    votes = Counter[float]()
    for size_bytes, seconds, rate in points:
        fits = [f for f in (1.0, GIBI) if is_rate(size_bytes, seconds, rate.times(f), 1e-4)]
        votes.update(fits if len(fits) == 1 else ())
    return default if votes[1.0] == votes[GIBI] else votes.most_common(1)[0][0]


# -- words --------------------------------------------------------------------------------------------------

_COLLECTIVES = {
    # An alltoallv of another tool keeps its name: its output does not say what traffic was sent.
    **{name.replace("_", ""): name for name in COLLECTIVES if name != UNEVEN},
    "bcast": "broadcast",
    "alltoallpersonalizedexchange": "all_to_all",
    "allr": "all_reduce",
    "allg": "all_gather",
    "redsct": "reduce_scatter",
}

DTYPES = {
    **{name: name for name in ITEM_BYTES},
    **dict.fromkeys(("float", "fp32", "f32", "mpi_float"), "float32"),
    **dict.fromkeys(("double", "fp64", "f64", "mpi_double"), "float64"),
    **dict.fromkeys(("half", "fp16", "f16"), "float16"),
    **dict.fromkeys(("bf16", "bfp16"), "bfloat16"),
    **dict.fromkeys(("int", "mpi_int"), "int32"),
    **dict.fromkeys(("char", "mpi_char", "mpi_signed_char"), "int8"),
    **dict.fromkeys(("f8e4m3", "fp8_e4m3"), "float8_e4m3"),
    **dict.fromkeys(("f8e5m2", "fp8_e5m2"), "float8_e5m2"),
    "mpi_byte": "uint8",
}

# MPI benchmarks print the bytes of one block where nccl-tests counts the largest buffer of a rank.
_BLOCKWISE = {"all_gather", "all_to_all", "gather", "scatter"}


def collective_name(word: str) -> str:
    """ccbench's name of the collective ``word``, or the word itself, trimmed."""
    return _COLLECTIVES.get(re.sub(r"[^a-z0-9]", "", word.lower()), word.strip())


_TITLE = re.compile(
    r"\s{0,200}(?:[#*]|\S{1,40}\s{0,9}$)|.{0,400}?(?:[:*]\s{0,9}$|mype_node:|min_lat\()"
)
"""Titles and single words; the last two are of NVSHMEM's tests (NVIDIA/nvshmem, perftest/common/utils.cu)."""
_LIBRARY = re.compile(
    r"(?<![\w/=.-])(NVSHMEM|UCCL|MSCCL ?\+\+|MSCCLPP|oneCCL|[NR]CCL|NIXL|mype|min_lat)(?!(?!-tests)[/=.+-]\w|[\w/=])",
    re.IGNORECASE,
)
_LIBRARIES = {"mype": "nvshmem", "min_lat": "nvshmem"}


def library_in(text: str) -> str:
    """ccbench's name of the only collective library that a title or a cell names, else ""."""
    printed = _LIBRARY.findall(text) if _TITLE.match(text) else ()
    names = {re.sub("[ +]+", "pp", _LIBRARIES.get(name, name.lower())) for name in printed}
    return names.pop() if len(names) == 1 else ""


def dtype_name(word: str) -> str:
    """ccbench's name of the element type ``word``, or the word itself, trimmed."""
    stripped = word.strip().removeprefix("torch.")
    return DTYPES.get(stripped.lower(), stripped)


def op_of(collective: str, op: str) -> str:
    """``op`` where the collective reduces, ``none`` where it does not, "" where that is not known."""
    if collective in COLLECTIVES:
        return op if COLLECTIVES[collective].reduces else "none"
    return ""


def root_of(collective: str) -> int:
    """The root of tools that always take rank 0; -1 where the collective has none."""
    return 0 if collective in COLLECTIVES and COLLECTIVES[collective].rooted else -1


def whole_size(
    collective: str, printed_bytes: int, ranks: int | None
) -> tuple[int, tuple[str, ...]]:
    """(nccl-tests' size, flags) of a row that prints the bytes of one rank's block, as MPI benchmarks do.

    The buffer is the block for all-reduce, broadcast, reduce and send-receive, and of one block a rank for
    all-gather, all-to-all, gather and scatter. Reduce-scatter is printed whole by OSU and by Intel's
    benchmarks. Source: the buffers each benchmark allocates (osu_allgather.c, osu_alltoall.c,
    osu_reduce_scatter.c; Intel MPI Benchmarks User Guide, "MPI-1 Benchmarks").
    """
    if collective not in _BLOCKWISE:
        return printed_bytes, ()
    if ranks is None:
        return printed_bytes, (Flag.SIZE_OF_ONE_BLOCK,)
    return printed_bytes * ranks, ()


@dataclass(frozen=True)
class Launch:
    """Ranks and nodes of a launcher's command line; None where it does not say."""

    ranks: int | None = None
    nodes: int | None = None


_LAUNCHER = re.compile(
    r"(?:^|[\s=/])(mpirun|mpiexec|orterun|prterun|srun|aprun|flux)(?:[._-][\w.-]{0,40})?(?!\S)"
)
"""mpirun_rsh of MVAPICH and mpiexec.hydra of MPICH too."""

_COUNT = r"[ =]{0,9}([1-9][0-9]{0,6})(?![\w.])"
_RANKS = re.compile(rf"\s(?:--?np?|--ntasks){_COUNT}")
_PER_NODE = re.compile(
    rf"(?:\s(?:--?ppn|--?npernode|--ntasks-per-node|-perhost)|\bppr:){_COUNT}"
)
_NODES = re.compile(rf"\s(?:--nodes|-N){_COUNT}")


def launch_of(line: str) -> Launch | None:
    """Return what ``line`` says about ranks and nodes, None where no launcher is in it."""
    launcher = _LAUNCHER.search(line) if re.search("run|mpiexec|flux", line) else None
    if launcher is None:
        return None
    options = line[launcher.end() :]
    if launcher[1] not in ("srun", "flux"):  # -N of Open MPI is processes per node
        options = options.replace(" -N", " -ppn")
    matches = (pattern.search(options) for pattern in (_RANKS, _NODES, _PER_NODE))
    ranks, nodes, each = (int(match[1]) if match else None for match in matches)
    # Two of ranks, nodes and ranks per node make the third.
    if nodes is None and ranks and each and ranks % each == 0:
        nodes = ranks // each
    if ranks is None and nodes and each:
        ranks = nodes * each
    return Launch(ranks, nodes)


_PROGRAM = re.compile(r"\b([a-z][a-z_]{2,24}?)_perf(?:_mpi)?\b")
_VERSIONS = (
    ("nccl-tests", re.compile(r"nccl-tests version v?(\d[\w.+-]{0,40})")),
    ("rccl-tests", re.compile(r"rccl-tests: Version (\S{1,60})")),
    ("NCCL", re.compile(r"\bNCCL version (\d[\w.]{0,24})")),
    ("RCCL", re.compile(r"\bRCCL version\s{0,4}:?\s{1,4}(\d\S{0,40})")),
    ("CUDA", re.compile(r"\bNCCL version [\d.]{1,24}\+cuda(\d[\d.]{0,12})")),
    ("HIP", re.compile(r"\bHIP version\s{0,4}:\s{0,4}(\d\S{0,40})")),
    ("ROCm", re.compile(r"\bROCm version\s{0,4}:\s{0,4}(\d\S{0,40})")),
)
_CODE = re.compile(r"nccl-headers=\d{4,6}\s{1,4}nccl-library=(\d{4,6})")
_SET = re.compile(r"\b((?:NCCL|RCCL|MCCL)_[A-Z0-9_]{1,60}) set by environment to (\S{1,200})")
_SET_BY_PLUGIN = re.compile(
    r'Setting ((?:NCCL|RCCL|FI)_[A-Z0-9_]{1,60}) (?:environment variable )?to "?([^"\s]{1,80})'
)
_ASSIGNED = re.compile(
    r"(?<![\w.-])((?:NCCL|RCCL|MCCL|MSCCL|MSCCLPP|OFI_NCCL|FI|UCX|SHARP|HSA)_[A-Z0-9_]{1,60})=(?:\"([^\"\s]{0,200})\"|([^\s\"'`;]{1,200}))"
)
_NEGATED = re.compile(r"\b(?:not|unset|without|never|instead of|\w+n't)\b", re.IGNORECASE)
"""Words of prose about a variable that has no such value."""
_HINT = re.compile(
    r"NVLS|SHARP|COLLNET|CollNet|\bAlgo\b|\bproto\b|NCCL_ALGO|NCCL_PROTO|\bPAT\b"
    r"|Connected all (?:rings|trees)|coll channels|threadThresholds|Trees disabled"
    r"|Channel \d{1,3}(?:/\d{1,3})? :|Trees \[0\]|Using network|Launch mode"
    r"|Pattern \d{1,2}, crossNic|Latency/AlgBw|\bMSCCL\b",
)
_MOST_HINTS = 400
_USED_NETWORK = re.compile(r"Using network (\S{1,40})|Selected [Pp]rovider is ([a-z]{2,12})")
_PORTS = re.compile(r"NET/IB\w{0,8} ?: Using \[0\]")
_PORT = re.compile(r"\[\d{1,3}\]([\w.+-]{1,64}):\d{1,3}/(IB|RoCE)\b")
_PORT_RATE = re.compile(
    r"NET/IB: \[\d{1,3}\] ([\w.-]{1,64}):\S{1,80} provider=\S{1,40} speed=(\d{1,7})\b"
)
"""With NCCL_DEBUG_SUBSYS=NET, speed in Mb/s (NVIDIA/nccl, src/transport/net_ib.cc)."""


class LibraryLines:
    """Collects what lines say: versions (the first of each), variables, and lines that show a choice.

    network: what is used, ports with their link layers, Gb/s of ports, and the line that shows each.
    """

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.network: dict[str, Any] = {}
        self._hints: dict[str, None] = {}

    def take(self, line: LogLine) -> None:
        """One line, in order."""
        self.versions = versions_in(line.text) | self.versions
        self.environment |= variables_in(line.text)
        if "NET/" in line.text or "Using network" in line.text:
            if used := _USED_NETWORK.search(line.text):
                # A provider says more than the plug-in's name ("AWS Libfabric").
                if "used" not in self.network or used[2] not in (None, self.network["used"]):
                    self.network |= {"used": used[2] or used[1], "used_line": line.number}
            elif rate := _PORT_RATE.search(line.text):
                self.network.setdefault("gigabits", {})[rate[1]] = int(rate[2]) / 1000
            elif _PORTS.search(line.text) and "ports" not in self.network:
                self.network |= {
                    "ports": dict(_PORT.findall(line.text)),
                    "ports_line": line.number,
                }
        # One channel through host memory decides for its ring: such lines count behind many others too.
        most = _MOST_HINTS * (2 if " via SHM" in line.text else 1)
        if line.message and len(self._hints) < most and _HINT.search(line.text):
            self._hints[line.text.partition("] ")[2]] = None

    @property
    def shown(self) -> dict[str, Any]:
        """Fields of a log; its hints are messages without the process they come from."""
        return {
            "versions": self.versions,
            "environment": self.environment,
            "hints": tuple(self._hints),
            "facts": {"network": self.network} if self.network else {},
        }


def program_collective(text: str) -> str:
    """ccbench's name of the collective of a program named in ``text`` (all_reduce_perf ...), or ""."""
    for match in _PROGRAM.finditer(text) if "_perf" in text else ():
        if (name := collective_name(match[1])) in COLLECTIVES:
            return name
        if match[1] in ("alltoallv", "hypercube", "all_reduce_bias"):
            return match[1]
    return ""


def versions_in(text: str) -> dict[str, str]:
    """Versions that a line names, by what they are versions of."""
    if "version" not in text.lower():
        return {}
    versions = {
        name: match[1] for name, pattern in _VERSIONS if (match := pattern.search(text))
    }
    if code := _CODE.search(text):
        versions["NCCL"] = decoded(int(code[1]))
    return versions


def decoded(code: int) -> str:
    """NCCL's version code as text: 22903 is 2.29.3, 2804 is 2.8.4 (nccl.h, NCCL_VERSION)."""
    major = 10_000 if code >= 10_000 else 1000
    return f"{code // major}.{code % major // 100}.{code % 100}"


def variables_in(text: str) -> dict[str, str]:
    """Variables of collective libraries that a line shows, set by hand, by a launcher or by a plug-in."""
    variables: dict[str, str] = {}
    if "set by environment" in text:
        variables |= {name: value.rstrip(".,") for name, value in _SET.findall(text)}
    if "Setting " in text:
        variables |= dict(_SET_BY_PLUGIN.findall(text))
    if "=" in text and not _NEGATED.search(_ASSIGNED.sub("", text)):
        variables |= {
            name: quoted or bare.rstrip(".,:)")
            for name, quoted, bare in _ASSIGNED.findall(text)
        }
    return variables
