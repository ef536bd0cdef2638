"""Faults planted in the interpreter and in the low latency kernels: each must be found."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import KernelFailed
from ccbench.backends.kernels.sources import kernel_folder
from tests.backends.kernels.cases import KernelCase
from tests.backends.kernels.in_a_row import run_in_a_row

SEEDS = (1, 2, 3)

SCHEDULE_FAULTS = {
    "a message is looked at before it came": (
        "received_before(run, pass, connection) + 1 :",
        "received_before(run, pass, connection) :",
    ),
    "no wait for credit": ("sent < slots ? 0 : sent + 1 - slots", "0"),
    "credit off by one": ("sent + 1 - slots", "sent - slots"),
    "told before all lanes are done": (
        "        __syncthreads();\n        tell_peers(run, unit, pass);",
        "        tell_peers(run, unit, pass);\n        __syncthreads();",
    ),
    "counts not kept for the next launch": (
        "    if (ok) close_connections(block, shared, passes);",
        "    (void)passes;",
    ),
    "a later pass counts as the first": ("pass.number * per_pass[peer] + ", "0 * per_pass[peer] + "),
    "what lies beside in the slot is not skipped": ("(reference & 0xffff) * run.chunk_bytes", "0"),
    "channels share work places": ("(i64)block.channel * work_places * chunk_bytes", "0"),
}

LL_FAULTS = {
    "one half only": ("(i64)(run.epoch & 1) *", "(i64)(0) *"),
    "the flag is not looked at": (
        "(u32)(seen >> 32) != run.flag && missing",
        "(u32)(seen >> 32) == 0 && missing",
    ),
    "rounds are not counted from launch to launch": ("    if (block.lane == 0) *state = run.epoch;", "    ;"),
    "the second packet's data is taken for the first's": (
        "return (u64)second << 32 | first;",
        "return (u64)first << 32 | second;",
    ),
    "nobody tells a broadcasting root that it has read": (
        "    exchange_tokens(run, missing);\n",
        "",
    ),
    "the end is cut off": (
        "offset < PAIR_BYTES && offset < bytes",
        "offset < PAIR_BYTES && offset + size < bytes",
    ),
}


def mutated(tmp_path: Path, file: str, right: str, wrong: str) -> Build:
    """Run under the thread sanitizer, and in a process of its own: a fault may write anywhere."""
    copy = tmp_path / "kernels"
    shutil.copytree(kernel_folder(), copy)
    text = (copy / file).read_text()
    assert right in text
    (copy / file).write_text(text.replace(right, wrong))
    return Build(file, folder=copy, sanitize=True)


NAMES = ("all_reduce halving_doubling", "all_to_all bruck", "broadcast chain")


def survives(case: KernelCase, seed: int, build: Build) -> bool:
    try:
        return run_in_a_row(case, seed, build)
    except (AssertionError, KernelFailed):
        return False


def schedule_survives(build: Build) -> bool:
    cases = [KernelCase("schedule", name, ranks=4, count=301, pieces=3) for name in NAMES]
    return all(survives(replace(one, in_place=seed == 2), seed, build) for seed in SEEDS for one in cases)


def ll_survives(build: Build) -> bool:
    """With many rounds, and with one."""
    cases = [KernelCase(name, dtype="bfloat16") for name in ("ll_all_reduce", "ll_broadcast")]
    return all(
        survives(replace(one, packets=4 if seed % 2 else 256), seed, build)
        for seed in (*SEEDS, 4, 5, 6)
        for one in cases
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", SCHEDULE_FAULTS)
def test_a_fault_in_the_interpreter_is_found(tmp_path: Path, fault: str) -> None:
    right, wrong = SCHEDULE_FAULTS[fault]
    assert not schedule_survives(mutated(tmp_path, "schedule.cu", right, wrong))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("fault", LL_FAULTS)
def test_a_fault_in_the_low_latency_kernels_is_found(tmp_path: Path, fault: str) -> None:
    right, wrong = LL_FAULTS[fault]
    assert not ll_survives(mutated(tmp_path, "ll.cu", right, wrong))


@pytest.mark.exhaustive
def test_without_a_fault_all_of_it_passes() -> None:
    assert schedule_survives(Build("schedule.cu", sanitize=True))
    assert ll_survives(Build("ll.cu", sanitize=True))
