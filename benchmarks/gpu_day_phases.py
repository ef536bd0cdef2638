"""What benchmarks/gpu_day.py runs, as data: phases by priority, their steps, limits and commands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# None of the checkout's own settings: warnings of other versions of NumPy and pytest are no errors.
PYTEST = (
    *("-m", "pytest", "-v", "-rsfE", "--tb=short", "-p", "no:cacheprovider"),
    *("-o", "addopts=", "-o", "filterwarnings=", "-o"),
)

FILES = {
    "test_cupy": "",
    "test_nccl_library": "",
    "test_nccl": "nccl",
    "test_loopback": "cuda",
    "test_transport": "cuda",
    "test_groups": "cuda",
    "test_teams": "cuda",
    "test_endurance": "cuda",
    "test_mpi_memory": "cuda",
}
"""Files of tests/gpu, the most telling first, and the doubles they are rehearsed on."""

OWN_STEPS = ("test_two_streams", "test_compute_sanitizer")

ON_DOUBLES = (
    "not (ipc or share_a_gpu or killed or never_comes_ends or nobody_releases or ten_thousand or schedule "
    "or measures and not -2])"
)
"""Tests that are rehearsed: the doubles know one process only, have a clock of their own, and are slow."""

BUILDING = (
    "import pathlib, tempfile; from benchmarks.nccl_fidelity import built; "
    "print(built(pathlib.Path(tempfile.mkdtemp())))"
)


@dataclass(frozen=True)
class Step:
    """One process: this Python, or ``program``, with ``words``; {here} is the place of what it writes.

    rehearsed: its words without a GPU; None: a rehearsal leaves it out. doubles: those that it then runs on.
    needs: a program without which it is skipped.
    """

    name: str
    limit_seconds: float
    words: tuple[str, ...]
    rehearsed: tuple[str, ...] | None = None
    doubles: str = ""
    program: str = ""
    needs: str = ""


@dataclass(frozen=True)
class Phase:
    """Steps that belong together, in their order."""

    name: str
    question: str
    steps: tuple[Step, ...]


def module(name: str, limit_seconds: float, words: str, rehearsed: str = "", doubles: str = "") -> Step:
    """``python -m`` and ``words``; rehearsed: more words, for a rehearsal."""
    split = ("-m", *words.split())
    return Step(name, limit_seconds, split, (*split, *rehearsed.split()), doubles)


def gpu_tests(
    file: str, limit_seconds: float, doubles: str, name: str = "", only: str = "test", timeout: int = 90
) -> Step:
    """One file of tests/gpu, and a report for machines beside its log; timeout: of a test, in seconds."""
    words = (*PYTEST, f"timeout={timeout}", "--junit-xml={here}.xml", f"tests/gpu/{file}.py", "-k")
    rehearsed = (*words, f"{only} and {ON_DOUBLES}") if doubles else (*words, only)
    return Step(name or file.removeprefix("test_"), limit_seconds, (*words, only), rehearsed, doubles)


PHASES = (
    Phase(
        "facts",
        "what is this machine?",
        (
            module("doctor", 60, "ccbench doctor"),
            module("topo", 30, "ccbench topo"),
            module("packages", 30, "pip list --format=freeze"),
            Step("nvidia-smi", 20, ("-q",), program="nvidia-smi", needs="nvidia-smi"),
        ),
    ),
    Phase(
        "warm",
        "do all kernels compile for this device?",
        (module("compile", 120, "tests.gpu.warm", "--capability 90 --most 24"),),
    ),
    Phase(
        "smoke",
        "does everything run at all?",
        (
            module("every-kernel", 90, "tests.gpu.small_cases", doubles="cuda"),
            gpu_tests("test_two_streams", 90, "cuda", "two-streams"),
            gpu_tests("test_nccl", 60, "nccl", "nccl-one-rank", "collective_of_one_rank"),
        ),
    ),
    Phase(
        "gpu",
        "how near do own kernels come to what the memory allows?",
        (
            module(
                *("own-kernels", 240, "benchmarks.gpu -o {here}"),
                "--backend cuda-host --ranks 2,4 --sizes 8B,4KiB --rounds 1",
            ),
        ),
    ),
    Phase(
        "tests",
        "does the device do what the doubles did?",
        tuple(gpu_tests(file, 180, doubles) for file, doubles in FILES.items()),
    ),
    Phase(
        "loopback",
        "what does a step of each collective cost?",
        (
            module(
                "suite", 150, "ccbench run loopback --no-report -o {here}", "--backend cuda-host --only 4116"
            ),
        ),
    ),
    Phase(
        "fidelity",
        "is the time that ccbench gives NCCL's?",
        (Step("nccl", 120, ("-m", "benchmarks.nccl_fidelity"), ("-c", BUILDING), needs="nvcc"),),
    ),
    Phase(
        "sanitizer",
        "does NVIDIA's compute-sanitizer find anything?",
        (
            replace(
                gpu_tests("test_compute_sanitizer", 400, "", "compute-sanitizer", timeout=300),
                rehearsed=None,
                needs="compute-sanitizer",
            ),
        ),
    ),
)
