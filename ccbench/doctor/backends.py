"""Each backend: whether it works here, what it lacks, and the one command that cures it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from ccbench.backends import COMPILER, GPU
from ccbench.capabilities import Requirement, capabilities_of
from ccbench.doctor.checks import Check, Surroundings
from ccbench.doctor.gpus import visible
from ccbench.environment import Environment, Files, cuda_install, install_line


def backend_checks(
    names: Sequence[str], seen: Environment, files: Files, around: Surroundings
) -> tuple[Check, ...]:
    """One check for every backend: ``note`` where it cannot work, since others do."""
    return tuple(_backend(name, seen, files, around) for name in names)


def _backend(name: str, seen: Environment, files: Files, around: Surroundings) -> Check:
    title = f"backend {name}"
    lacking = list(_lacking(name, seen, files, around))
    if lacking:
        what = ", ".join(need for need, _ in lacking)
        # The packages of one extra come together, so their command is said once.
        return Check(
            title, "note", f"needs {what}", "; then ".join(dict.fromkeys(cure for _, cure in lacking))
        )
    reason = around.unavailable(name)
    if reason is None:
        needs = capabilities_of(name).needs
        versions = [_version(need, seen, around) for need in needs if need.distributions]
        return Check(title, "ok", " ".join(["works", *([f"({', '.join(versions)})"] if versions else [])]))
    # A backend's sentence is "what is missing; what to do" or "what is missing: what to do".
    what, split, cure = _SPLIT.split(reason, maxsplit=1) if _SPLIT.search(reason) else (reason, "", "")
    return Check(title, "note", what, cure if split else "see the section Backends of README.md")


_SPLIT = re.compile(r"(; |: )")


def _lacking(name: str, seen: Environment, files: Files, around: Surroundings) -> Iterator[tuple[str, str]]:
    """(what is missing, the command that cures it)."""
    for need in capabilities_of(name).needs:
        if not _there(need, seen, files, around):
            packages = install_line(need.extra) if need.extra else cuda_install(files)
            yield need.name, need.cure or packages


def _there(need: Requirement, seen: Environment, files: Files, around: Surroundings) -> bool:
    if need == GPU:
        return visible(seen.accelerators, files)
    if need == COMPILER:
        return around.finds_program(os.environ.get("CXX", "g++"))
    if need.library and any(need.library in path for path in seen.software.loadable):
        return True  # the system's own
    if need.module:
        return around.has_module(need.module)
    return any(around.version(one) is not None for one in need.distributions)


def _version(need: Requirement, seen: Environment, around: Surroundings) -> str:
    versions = [around.version(one) for one in need.distributions]
    if need.library:
        versions += [version for path, version in seen.software.loadable.items() if need.library in path]
    return f"{need.name} {next((one for one in versions if one is not None), '(version unknown)')}"
