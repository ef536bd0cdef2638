"""Each backend: whether it works here, what it lacks, and the one command that cures it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from importlib.util import find_spec

from ccbench.cases import Requirement, backend_names, capabilities_of
from ccbench.machine.accelerators import cuda_install
from ccbench.machine.doctor import Check, check, sees_gpu
from ccbench.machine.environment import Environment
from ccbench.machine.files import Files
from ccbench.machine.software import install_line, installed_version


def backend_checks(
    seen: Environment, files: Files, unavailable: Callable[[str], str | None]
) -> tuple[Check, ...]:
    """One check for every backend: ``note`` where it cannot work, since others do.

    unavailable: what a backend says keeps it from working, None where nothing does.
    """
    return tuple(_backend(name, seen, files, unavailable) for name in backend_names())


def _backend(name: str, seen: Environment, files: Files, unavailable: Callable[[str], str | None]) -> Check:
    title, needs = f"backend {name}", capabilities_of(name).needs
    lacking = {need.name: _cure(need, files) for need in needs if not _there(need, seen, files)}
    if lacking:
        # The packages of one extra come together, so their command is said once.
        return check(title, f"needs {', '.join(lacking)}", "; then ".join(dict.fromkeys(lacking.values())))
    reason = unavailable(name)
    if reason is None:
        versions = ", ".join(_version(need, seen) for need in needs if need.distributions)
        return check(title, f"works ({versions})" if versions else "works")
    # A backend's sentence is "what is missing; what to do" or "what is missing: what to do".
    what, *cure = re.split("; |: ", reason, maxsplit=1)
    return check(title, what, cure[0] if cure else "see the section Backends of README.md")


def _cure(need: Requirement, files: Files) -> str:
    return need.cure or (install_line(need.extra) if need.extra else cuda_install(files))


def _there(need: Requirement, seen: Environment, files: Files) -> bool:
    if need.name == "GPU":
        return sees_gpu(seen.accelerators, files)
    if need.name == "C++ compiler":
        return shutil.which(os.environ.get("CXX", "g++")) is not None
    if need.library and any(need.library in path for path in seen.software.loadable):
        return True  # the system's own
    if need.module:
        return has_module(need.module)
    return any(installed_version(one) is not None for one in need.distributions)


def has_module(name: str) -> bool:
    """Whether a Python module could be imported."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a parent package is missing, or half-installed
        return False


def _version(need: Requirement, seen: Environment) -> str:
    versions = [installed_version(one) for one in need.distributions]
    if need.library:
        versions += [version for path, version in seen.software.loadable.items() if need.library in path]
    return f"{need.name} {next((one for one in versions if one is not None), '(version unknown)')}"
