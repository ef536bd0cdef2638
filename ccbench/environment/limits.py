"""What the control group allows."""

from __future__ import annotations

from dataclasses import dataclass

from ccbench.environment.files import Files

# cgroup v1 writes "no limit" as the largest multiple of a page, about 9.2e18.
_V1_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True)
class Limits:
    """What the control group allows: ``cores`` may be a fraction; None means no limit is set.

    memory_free_bytes: what is left of the tightest memory limit.
    """

    cores: float | None
    memory_bytes: int | None
    memory_free_bytes: int | None = None


def control_group_limits(files: Files) -> Limits:
    """The tightest CPU and memory limit on the way from this process's control group to the root.

    Reads cgroup v2 (``cpu.max``, ``memory.max``) and v1 (``cpu.cfs_quota_us``,
    ``memory.limit_in_bytes``); see the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
    """
    cores: list[float] = []
    memory_bytes: list[int] = []
    free_bytes: list[int] = []
    for line in (files.text("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        names = controllers.split(",")
        if number == "0" and not controllers:
            for folder in _upwards("/sys/fs/cgroup", group):
                cores += _quota(*(files.text(f"{folder}/cpu.max") or "").split())
                limit = files.number(f"{folder}/memory.max") or _V1_UNLIMITED_BYTES
                memory_bytes.append(limit)
                free_bytes.append(limit - (files.number(f"{folder}/memory.current") or 0))
        if "cpu" in names:
            for folder in _upwards("/sys/fs/cgroup/cpu", group):
                quota = files.text(f"{folder}/cpu.cfs_quota_us") or ""
                cores += _quota(quota, files.text(f"{folder}/cpu.cfs_period_us") or "")
        if "memory" in names:
            for folder in _upwards("/sys/fs/cgroup/memory", group):
                limit = files.number(f"{folder}/memory.limit_in_bytes") or _V1_UNLIMITED_BYTES
                memory_bytes.append(limit)
                free_bytes.append(limit - (files.number(f"{folder}/memory.usage_in_bytes") or 0))
    limited = min(memory_bytes, default=_V1_UNLIMITED_BYTES) < _V1_UNLIMITED_BYTES
    return Limits(
        cores=min(cores, default=None),
        memory_bytes=min(memory_bytes) if limited else None,
        memory_free_bytes=max(0, min(free_bytes)) if limited else None,
    )


def _upwards(mount: str, group: str) -> list[str]:
    """The folder of ``group`` and of every group around it, up to the mount itself.

    Inside a container the group's path may be the host's, which is not visible: the mount then is the
    container's own group, so it is always looked at.
    """
    parts = [part for part in group.split("/") if part not in ("", "..")]
    return ["/".join([mount, *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def _quota(quota: str = "", period: str = "") -> list[float]:
    if not (quota.isdecimal() and period.isdecimal()) or int(period) == 0:
        return []  # "max" and -1 mean no limit
    return [int(quota) / int(period)]
