"""Fake ``/proc`` and ``/sys`` trees in, facts out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.machine.files import Files, expanded
from ccbench.machine.host import (
    Limits,
    allowed_cpus,
    available_memory_bytes,
    capture,
    control_group_limits,
    usable_cores,
)
from ccbench.machine.software import git_revision
from tests.machine.laid_out import lay_out


def test_capture_of_this_machine_is_plain_json_and_knows_its_python() -> None:
    captured = capture()
    assert json.loads(json.dumps(captured))["software"]["python"].startswith(
        ("CPython", "PyPy")
    )
    assert "numpy" in captured["software"]["libraries"]


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_list_of_the_kernel_is_spelt_out(members: set[int]) -> None:
    ordered = sorted(members)
    parts, start = [], ordered[0]
    for number, following in zip(ordered, [*ordered[1:], None], strict=True):
        if following != number + 1:
            parts.append(str(start) if start == number else f"{start}-{number}")
            start = following if following is not None else 0
    assert expanded(",".join(parts)) == ordered


def test_the_tightest_limit_of_nested_v2_groups_counts(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/box/memory.max": "4096\n",
            "sys/fs/cgroup/pod/box/memory.current": "1000\n",
            "proc/meminfo": "MemAvailable:  8 kB\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/memory.max": "max\n",
        },
    )
    assert control_group_limits(Files(tmp_path)) == Limits(1.5, 4096, 3096)
    assert available_memory_bytes(Files(tmp_path)) == 3096


@pytest.mark.parametrize(
    "tree",
    [
        {".git/HEAD": "abc123\n"},
        {".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": "abc123\n"},
        {
            ".git/HEAD": "ref: refs/heads/main\n",
            ".git/packed-refs": "# pack\nabc123 refs/heads/main\n",
        },
    ],
)
def test_a_checkout_tells_its_revision(tmp_path: Path, tree: dict[str, str | bytes]) -> None:
    assert git_revision(lay_out(tmp_path, tree)) == "abc123"


def test_a_quota_counts_where_it_is_less_than_the_processors(tmp_path: Path) -> None:
    quota = {"proc/self/cgroup": "0::/x\n", "sys/fs/cgroup/x/cpu.max": "100000 100000\n"}
    assert usable_cores(Files(lay_out(tmp_path, dict(quota)))) == 1
    assert usable_cores(Files(tmp_path / "nothing")) == len(allowed_cpus())
