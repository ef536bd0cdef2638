"""A pytest plugin: processor seconds of the tests by package, against the ceilings of ``budget.yaml`` in the gate.

Time of this process and of the children that it waited for, so that a loaded machine fails nobody; divided by
what a fixed loop takes here, so that a slow one does not either.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml

REFERENCE_SECONDS = 0.126
"""Of the fixed loop on the machine whose seconds the ceilings are."""

ANY_TEST = "any one test"

_spent: defaultdict[str, float] = defaultdict(float)
_dearest: list[tuple[float, str]] = []
_over: list[str] = []


def processor_seconds() -> float:
    """Return seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def slowness() -> float:
    """Return how much longer the fixed loop takes here; of five tries the best."""
    tries = []
    for _ in range(5):
        began = time.process_time()
        sum(number * number for number in range(2_000_000))
        tries.append(time.process_time() - began)
    return min(tries) / REFERENCE_SECONDS


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


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a worker of xdist counted."""
    for place, seconds in node.workeroutput.get("spent", {}).items():
        _spent[place] += seconds
    _dearest.extend(map(tuple, node.workeroutput.get("dearest", ())))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's figures on; in the gate fail a quick tier that takes longer than its ceilings."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output.update(spent=dict(_spent), dearest=sorted(_dearest)[-20:])
    elif os.environ.get("CCBENCH_TESTED") and session.config.option.markexpr.startswith(
        "not exhaustive"
    ):
        ceilings = yaml.safe_load(Path(__file__).with_name("budget.yaml").read_text())[
            "seconds"
        ]
        scale = slowness()
        figures = {**_spent, ANY_TEST: max(_dearest)[0]}
        for place, seconds in figures.items():
            if seconds / scale > ceilings.get(place, 0):
                _over.append(
                    f"{place}: {seconds:.1f} s of at most {ceilings.get(place, 0) * scale:.1f}"
                )
        if _over and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show where the time went."""
    if (total := sum(_spent.values())) > 1:
        by_package = sorted(_spent, key=_spent.__getitem__, reverse=True)
        shown = ", ".join(f"{place} {_spent[place]:.0f}" for place in by_package)
        terminalreporter.section(f"{total:.0f} processor seconds")
        terminalreporter.write_line(shown)
        for seconds, test in sorted(_dearest)[-5:]:
            terminalreporter.write_line(f"{seconds:6.1f} {test[:100]}")
    for line in _over:
        terminalreporter.write_line(f"above the ceiling of tests/budget.yaml: {line}")
