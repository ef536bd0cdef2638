"""Other tools' words in ccbench's: collectives, element types, operations, and what a command line says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ccbench.cases import UNEVEN
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.machine.flags import Flag

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


def plain(word: str) -> str:
    """Lower case, and nothing but letters and digits."""
    return re.sub(r"[^a-z0-9]", "", word.lower())


def collective_name(word: str) -> str:
    """ccbench's name of the collective ``word``, or the word itself, trimmed."""
    return _COLLECTIVES.get(plain(word), word.strip())


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


def whole_size(collective: str, printed_bytes: int, ranks: int | None) -> tuple[int, tuple[str, ...]]:
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
    """What a launcher's command line says; None where it says nothing."""

    ranks: int | None = None
    nodes: int | None = None


NO_LAUNCH = Launch()
_LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun", "flux"}
_RANKS = {"-n", "-np", "--np", "--n", "--ntasks"}
_PER_NODE = {"-ppn", "--ppn", "-npernode", "--npernode", "--ntasks-per-node", "-perhost"}
_NODES = {"--nodes", "-N"}
_PLACED = re.compile(r"\bppr:([1-9][0-9]{0,5}):node\b")


def launch_of(line: str) -> Launch | None:
    """What ``line`` says about ranks and nodes, None where no launcher is in it.

    -N is nodes for srun and flux and processes per node for Open MPI.
    """
    if not any(name in line for name in ("mpi", "run", "flux")):
        return None
    words = line.replace("=", " ").split()[:200]
    begin = next((i for i, word in enumerate(words) if word.rsplit("/", 1)[-1] in _LAUNCHERS), None)
    if begin is None:
        return None
    counts_nodes = words[begin].rsplit("/", 1)[-1] in ("srun", "flux")
    found: dict[str, int] = {}
    for option, value in zip(words[begin + 1 :], words[begin + 2 :], strict=False):
        attached = re.fullmatch(r"(-[nN])([0-9]{1,7})", option)
        name, text = (attached[1], attached[2]) if attached else (option, value)
        if not (text.isascii() and text.isdigit() and 0 < len(text) <= 7 and int(text)):
            continue
        if name in _RANKS:
            found.setdefault("ranks", int(text))
        elif name in _PER_NODE or (name == "-N" and not counts_nodes):
            found.setdefault("each", int(text))
        elif name in _NODES:
            found.setdefault("nodes", int(text))
    if "--pernode" in words or "-pernode" in words:
        found.setdefault("each", 1)
    if placed := _PLACED.search(line):
        found.setdefault("each", int(placed[1]))
    return _completed(found)


def _completed(found: dict[str, int]) -> Launch:
    ranks, nodes, each = found.get("ranks"), found.get("nodes"), found.get("each")
    if nodes is None and ranks and each and ranks % each == 0:
        nodes = ranks // each
    if ranks is None and nodes and each:
        ranks = nodes * each
    return Launch(ranks, nodes)
