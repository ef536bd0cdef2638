"""A pytest plugin: processor seconds of the tests by package, against the ceilings of ``budget.yaml`` in the gate.

Time of this process and of the children that it waited for, so that a loaded machine fails nobody; divided by
what compiling a fixed text takes between the tests, so that a slow one does not either, nor one whose cores share
units and caches with each other and with whoever else is there.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

REFERENCE_SECONDS = 0.0189
"""Of compiling the text on the machine whose seconds the ceilings are."""

TEXT = Path(argparse.__file__).read_text(encoding="utf-8")

NOISE = 1.2
"""Above a ceiling by which it fails: what compiling says of a machine is assumed to be right within a fifth."""

SAMPLING_SECONDS = 2.0
"""From one look at the speed to the next."""

ANY_TEST = "any one test"

_spent: defaultdict[str, float] = defaultdict(float)
_dearest: list[tuple[float, str]] = []
_over: list[str] = []
_compiled: list[float] = []
_looked_at = 0.0


def processor_seconds() -> float:
    """Return seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def look_at_speed() -> None:
    """Time the compiler, where the last time is long enough ago."""
    global _looked_at
    if time.monotonic() > _looked_at + SAMPLING_SECONDS:
        began = time.process_time()
        compile(TEXT, "argparse", "exec")
        _compiled.append(time.process_time() - began)
        _looked_at = time.monotonic()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Time a test with its fixtures."""
    began = processor_seconds()
    try:
        return (yield)
    finally:
        seconds = processor_seconds() - began
        _, *folders = item.nodeid.partition("::")[0].split("/")
        _spent[folders[0] if len(folders) > 1 else "flat modules"] += seconds
        _dearest.append((seconds, item.nodeid))
        look_at_speed()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a worker of xdist counted."""
    for place, seconds in node.workeroutput.get("spent", {}).items():
        _spent[place] += seconds
    _dearest.extend(map(tuple, node.workeroutput.get("dearest", ())))
    _compiled.extend(node.workeroutput.get("compiled", ()))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's figures on; in the gate fail a quick tier that takes longer than its ceilings."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output.update(spent=dict(_spent), dearest=sorted(_dearest)[-20:], compiled=_compiled)
    elif os.environ.get("CCBENCH_TESTED") and session.config.option.markexpr.startswith(
        "not exhaustive"
    ):
        ceilings = yaml.safe_load(Path(__file__).with_name("budget.yaml").read_text())[
            "seconds"
        ]
        scale = speed()
        figures = {**_spent, ANY_TEST: max(_dearest)[0]}
        for place, seconds in figures.items():
            most = ceilings.get(place, 0) * scale * NOISE
            if seconds > most:
                _over.append(f"{place}: {seconds:.1f} s of at most {most:.1f}")
        if _over and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def speed() -> float:
    """Return how much longer than on the reference things take here."""
    return median(_compiled) / REFERENCE_SECONDS


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show where the time went."""
    if (total := sum(_spent.values())) > 1:
        by_package = sorted(_spent, key=_spent.__getitem__, reverse=True)
        shown = ", ".join(f"{place} {_spent[place]:.0f}" for place in by_package)
        scale = speed()
        terminalreporter.section(
            f"{total:.0f} processor seconds, {scale:.2f} to a reference second"
        )
        terminalreporter.write_line(shown)
        for seconds, test in sorted(_dearest)[-5:]:
            terminalreporter.write_line(f"{seconds:6.1f} {test[:100]}")
    for line in _over:
        terminalreporter.write_line(f"above the ceiling of tests/budget.yaml: {line}")
