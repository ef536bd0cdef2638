"""What benchmarks/gpu_day.py runs, as data: phases by priority, their steps, limits and commands."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# None of the checkout's own settings: warnings of other versions of NumPy and pytest are no errors.
PYTEST = (
    *("-m", "pytest", "-v", "-rsfE", "--tb=short", "-p", "no:cacheprovider"),
    *("-o", "addopts=", "-o", "filterwarnings=", "-o"),
)

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
    needs: a program without which it is skipped. environment: variables and their values, for it alone.
    """

    name: str
    limit_seconds: float
    words: tuple[str, ...]
    rehearsed: tuple[str, ...] | None = None
    doubles: str = ""
    program: str = ""
    needs: str = ""
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Phase:
    """Steps that belong together, in their order."""

    name: str
    question: str
    steps: tuple[Step, ...]


def module(
    name: str, limit_seconds: float, words: str, rehearsed: str = "", doubles: str = ""
) -> Step:
    """``python -m`` and ``words``; rehearsed: more words, for a rehearsal."""
    split = ("-m", *words.split())
    return Step(name, limit_seconds, split, (*split, *rehearsed.split()), doubles)


def gpu_tests(
    file: str,
    limit_seconds: float,
    doubles: str,
    name: str = "",
    only: str = "test",
    timeout: int = 90,
) -> Step:
    """One file of tests/gpu, and a report for machines beside its log; timeout: of a test, in seconds."""
    words = (
        *PYTEST,
        f"timeout={timeout}",
        "--junit-xml={here}.xml",
        f"tests/gpu/{file}.py",
        "-k",
    )
    rehearsed = (*words, f"{only} and {ON_DOUBLES}") if doubles else (*words, only)
    return Step(
        name or file.removeprefix("test_"), limit_seconds, (*words, only), rehearsed, doubles
    )


NCCL_TEAMS = "share_a_gpu or killed"
"""Tests of tests/gpu/test_nccl.py that start processes: about 8 s each."""

FIRST_NCCL_TEAM = "(every_collective_of_ranks and 2])"
EIGHT_RANKS = "(bit_for_bit and default-8)"
TWO_PROCESSES = "(measures_right and per_gpu)"

PROFILED = ("mesh_two_shot", "ring")
BLOCKING_OFF = (("CCBENCH_BLOCKING_KERNEL", "off"),)
"""A profiler makes every launch wait for its end."""

LARGE_BOXES = {"packets_bytes": "32MiB"}
"""Of 8 ranks: 64 KiB on one block in one round."""

SMALL_SETTINGS = (
    *({"channels": number, **LARGE_BOXES} for number in ("1", "4", "16")),
    *({"lanes": number, **LARGE_BOXES} for number in ("32", "128")),
)
MESSAGE = {"slot_bytes": "128KiB"}
LARGE_SETTINGS = (
    *({"channels": number, **MESSAGE} for number in ("8", "16", "24", "32")),
    *({"channels": "16", "slots": number, **MESSAGE} for number in ("2", "8")),
    *({"channels": "16", "slot_bytes": size} for size in ("32KiB", "64KiB", "512KiB")),
    {"channels": "16", "lanes": "256", **MESSAGE},
)
"""One thing alone differs: as many channels fit in every one, and messages do not follow their number."""


def with_settings(suite: str, settings: dict[str, str]) -> Step:
    """A suite of this folder under settings of kernels (ccbench/backends/kernels/layout.py)."""
    name = "-".join(
        [
            suite,
            *(
                f"{key.replace('_', '-')}-{value}"
                for key, value in settings.items()
                if key != "packets_bytes"
            ),
        ]
    )
    words = f"ccbench run benchmarks/gpu_{suite}.yaml --no-report -o {{here}}"
    smallest = "1024" if suite == "small" else "1048576"
    step = module(name, 40, words, f"--backend cuda-host --ranks 2 --only {smallest}")
    return replace(
        step,
        environment=tuple(
            (f"CCBENCH_KERNEL_{key.upper()}", value) for key, value in settings.items()
        ),
    )


def profiled(algorithm: str) -> Step:
    """One launch under Nsight Compute, the one after the empty launch; its figures are the step's log."""
    options = ("--target-processes", "all", "--clock-control", "none", "--set", "basic")
    launch = ("-m", "benchmarks.gpu_launch", algorithm, "8", "256MiB")
    words = (*options, "-k", "ccb_kernel", "-s", "1", "-c", "1", sys.executable, *launch)
    return Step(algorithm, 60, words, program="ncu", needs="ncu", environment=BLOCKING_OFF)


def sanitized(tool: str) -> Step:
    """Every kernel under one tool of compute-sanitizer."""
    step = gpu_tests("test_compute_sanitizer", 150, "", tool, only=tool, timeout=120)
    return replace(step, rehearsed=None, needs="compute-sanitizer")


SETTLING = (
    *(with_settings("small", setting) for setting in SMALL_SETTINGS),
    *(with_settings("large", setting) for setting in LARGE_SETTINGS),
)

# Limits are above what one H100 took (results/reference): what hangs must not take the call.
PHASES = (
    Phase(
        "facts",
        "what is this machine?",
        (
            Step("nvidia-smi", 20, ("-q",), program="nvidia-smi", needs="nvidia-smi"),
            module("device", 20, "benchmarks.gpu_facts", doubles="cuda"),
            module("packages", 15, "pip list --format=freeze"),
            module("topo", 20, "ccbench topo"),
            module("doctor", 30, "ccbench doctor"),
        ),
    ),
    Phase(
        "warm",
        "do all kernels compile for this device?",
        (module("compile", 90, "tests.gpu.warm", "--capability 90 --most 24"),),
    ),
    Phase(
        "smoke",
        "does everything run at all?",
        (
            module("every-kernel", 60, "tests.gpu.small_cases", doubles="cuda"),
            gpu_tests("test_two_streams", 60, "cuda", "two-streams"),
            gpu_tests("test_nccl", 40, "nccl", "nccl-one-rank", "collective_of_one_rank"),
        ),
    ),
    Phase(
        "smoke-ipc",
        "do two processes reach each other's memory?",
        (gpu_tests("test_teams", 45, "", "two-processes", TWO_PROCESSES),),
    ),
    Phase(
        "bits",
        "does every kernel over 8 ranks give what the emulation gives, bit for bit?",
        (gpu_tests("test_loopback", 120, "cuda", "eight-ranks", EIGHT_RANKS),),
    ),
    Phase(
        "fidelity",
        "is the time that ccbench gives NCCL's?",
        (Step("nccl", 60, ("-m", "benchmarks.nccl_fidelity"), ("-c", BUILDING), needs="nvcc"),),
    ),
    Phase(
        "gpu",
        "how near do own kernels come to what the memory allows?",
        (
            module(
                *(
                    "own-kernels",
                    150,
                    "benchmarks.gpu --no-report --ranks 2,8 --rounds 2 -o {here}",
                ),
                "--backend cuda-host --ranks 2 --sizes 8B,4KiB --rounds 1",
            ),
        ),
    ),
    Phase("settle", "which blocks, lanes and messages are best?", SETTLING),
    Phase(
        "teams",
        "do teams of processes measure right, and end?",
        (gpu_tests("test_teams", 120, "", only=f"not {TWO_PROCESSES}"),),
    ),
    Phase(
        "endurance",
        "do ten thousand launches, and launches that cannot end, end well?",
        (gpu_tests("test_endurance", 80, "cuda"),),
    ),
    Phase(
        "nccl-shared",
        "does NCCL run two ranks on one GPU?",
        (gpu_tests("test_nccl", 45, "", "two-ranks", FIRST_NCCL_TEAM),),
    ),
    Phase("profile", "what holds large all_reduces back?", tuple(map(profiled, PROFILED))),
    Phase(
        "tests",
        "does the device do what the doubles did?",
        (
            gpu_tests("test_cupy", 20, ""),
            gpu_tests("test_nccl_library", 45, ""),
            gpu_tests("test_groups", 45, "cuda"),
            gpu_tests("test_mpi_memory", 45, "cuda"),
            gpu_tests("test_transport", 90, "cuda"),
            gpu_tests(
                "test_nccl", 60, "nccl", only=f"not ({NCCL_TEAMS} or collective_of_one_rank)"
            ),
            gpu_tests("test_loopback", 180, "cuda", only=f"not {EIGHT_RANKS}"),
        ),
    ),
    Phase(
        "loopback",
        "what does a step of each collective cost?",
        (
            module(
                "suite",
                80,
                "ccbench run loopback --no-report -o {here}",
                "--backend cuda-host --only 4116",
            ),
        ),
    ),
    Phase(
        "sanitizer",
        "does NVIDIA's compute-sanitizer find anything?",
        tuple(map(sanitized, ("memcheck", "racecheck", "synccheck"))),
    ),
    Phase(
        "nccl-teams",
        "does NCCL do with several ranks on one GPU what the doubles did?",
        (
            gpu_tests(
                "test_nccl",
                180,
                "",
                "several-ranks",
                f"({NCCL_TEAMS}) and not {FIRST_NCCL_TEAM}",
            ),
        ),
    ),
)
