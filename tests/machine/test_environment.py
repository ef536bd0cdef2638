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
    observe,
    spread_over_cores,
    usable_cores,
)
from ccbench.machine.software import git_revision
from tests.machine.laid_out import CPU, lay_out


def a_server(root: Path) -> Path:
    """Two sockets of two cores with two threads each, in a container of a KVM guest."""
    files: dict[str, str | bytes] = {
        "proc/sys/kernel/hostname": "node7\n",
        "proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
        "etc/os-release": 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12"\n',
        "proc/loadavg": "3.25 1.00 0.50 1/200 4242\n",
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Quick CPU 9000\nflags\t\t: fpu hypervisor avx2\n",
        "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-3\n",
        "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 600 kB\nSwapTotal: 100 kB\nSwapFree: 90 kB\n",
        f"{CPU}/online": "0-7\n",
        f"{CPU}/smt/active": "1\n",
        f"{CPU}/cpu0/topology/thread_siblings_list": "0,4\n",
        f"{CPU}/cpufreq/boost": "0\n",
        "sys/devices/system/node/online": "0-1\n",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "kvm-clock\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/class/dmi/id/sys_vendor": "QEMU\n",
        "sys/class/dmi/id/product_name": "Standard PC\n",
        "run/.containerenv": "",
    }
    for core in range(8):
        files[f"{CPU}/cpu{core}/topology/physical_package_id"] = str(core % 2)
        files[f"{CPU}/cpu{core}/cpufreq/scaling_governor"] = (
            "powersave" if core else "performance"
        )
    return lay_out(root, files)


def test_a_whole_machine_is_read_from_its_files(tmp_path: Path) -> None:
    observation = observe(a_server(tmp_path), variables={}, checkout=tmp_path)
    assert (observation.host.name, observation.host.kernel) == ("node7", "6.1.0-18-amd64")
    assert observation.host.system == "Debian GNU/Linux 12"
    assert observation.host.hypervisor == "hypervisor flag of the processor"
    assert observation.host.container == "/run/.containerenv"
    assert observation.host.load_1_minute == 3.25
    assert observation.host.product == "QEMU Standard PC"
    assert observation.processor.model == "Quick CPU 9000"
    assert (observation.processor.cores, observation.processor.cores_allowed) == (8, 4)
    assert (
        observation.processor.sockets,
        observation.processor.numa_nodes,
        observation.processor.threads_per_core,
    ) == (
        2,
        2,
        2,
    )
    assert observation.processor.smt_active is True
    assert observation.processor.boost is False
    assert observation.processor.governors == {"performance": 1, "powersave": 7}
    assert observation.processor.clock_source == "kvm-clock"
    assert observation.memory.total_bytes == 1000 * 1024
    assert observation.memory.available_bytes == 600 * 1024
    assert observation.memory.swap_used_bytes == 10 * 1024
    assert observation.memory.huge_pages == "madvise"
    assert observation.memory.shared_memory_huge_pages is None
    assert observation.software.git_revision is None


def test_a_machine_that_tells_nothing_gives_none_and_no_exception(tmp_path: Path) -> None:
    observation = observe(tmp_path, variables={}, checkout=tmp_path)
    assert observation.processor.model is None
    assert observation.processor.smt_active is None
    assert observation.processor.governors == {}
    assert observation.memory.total_bytes is None
    assert observation.limits == Limits(None, None)
    assert observation.host.load_1_minute is None
    assert observation.host.container is None
    assert observation.host.name  # the platform's name for it, where /proc has none


def test_a_file_of_nonsense_is_a_fact_not_told(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        {
            "proc/loadavg": "busy\n",
            "proc/meminfo": "MemTotal: lots\n",
            f"{CPU}/online": "all\n",
            f"{CPU}/smt/active": "\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "whenever",
        },
    )
    observation = observe(tmp_path, variables={}, checkout=tmp_path)
    assert observation.host.load_1_minute is None
    assert observation.memory.total_bytes is None
    assert observation.memory.huge_pages is None
    assert observation.processor.smt_active is None


def test_bytes_that_are_not_utf8_can_still_be_written_as_json(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        {"proc/sys/kernel/hostname": b"caf\xe9\n", "proc/cpuinfo": b"model name : \xff\xfe\n"},
    )
    observation = observe(tmp_path, variables={"NCCL_NET": "caf\udce9"}, checkout=tmp_path)
    assert observation.host.name == "caf\\xe9"
    assert observation.variables == {"NCCL_NET": "caf\\xe9"}
    json.dumps(
        [observation.host.name, observation.processor.model, dict(observation.variables)]
    ).encode("utf-8")


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


@pytest.mark.parametrize("ranges", ["", "all", "0-", None, "1,,2", "0-x"])
def test_what_is_no_kernel_list_has_no_members(ranges: str | None) -> None:
    assert expanded(ranges) == []


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


def test_a_container_that_cannot_see_its_host_path_reads_the_mount_itself(
    tmp_path: Path,
) -> None:
    lay_out(
        tmp_path,
        {"proc/self/cgroup": "0::/kubepods/x\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"},
    )
    assert control_group_limits(Files(tmp_path)).cores == 0.5


def test_v1_limits_are_read_and_v1_unlimited_is_none(tmp_path: Path) -> None:
    tree: dict[str, str | bytes] = {
        "proc/self/cgroup": "4:memory:/a\n2:cpu,cpuacct:/a\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert control_group_limits(Files(lay_out(tmp_path, tree))) == Limits(2.0, None)


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


def test_a_folder_that_is_no_checkout_has_no_revision(tmp_path: Path) -> None:
    assert git_revision(tmp_path) is None


def test_few_ranks_get_a_core_each_before_any_core_is_shared(tmp_path: Path) -> None:
    tree = {
        f"{CPU}/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 2},{cpu % 2 + 2}\n"
        for cpu in range(4)
    }
    files = Files(lay_out(tmp_path, dict(tree)))
    assert spread_over_cores([0, 1, 2, 3], files) == [0, 1, 2, 3]
    paired = {
        f"{CPU}/cpu{cpu}/topology/thread_siblings_list": f"{cpu & 2}-{cpu | 1}\n"
        for cpu in range(4)
    }
    files = Files(lay_out(tmp_path, dict(paired)))
    assert spread_over_cores([0, 1, 2, 3], files) == [0, 2, 1, 3]
    assert spread_over_cores([1, 2, 3], files) == [1, 2, 3]


def test_a_quota_counts_where_it_is_less_than_the_processors(tmp_path: Path) -> None:
    quota = {"proc/self/cgroup": "0::/x\n", "sys/fs/cgroup/x/cpu.max": "100000 100000\n"}
    assert usable_cores(Files(lay_out(tmp_path, dict(quota)))) == 1
    assert usable_cores(Files(tmp_path / "nothing")) == len(allowed_cpus())
