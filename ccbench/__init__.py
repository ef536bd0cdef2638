"""ccbench: how fast are this machine's collectives, is that what it should give, what to run instead.

The public names; each is imported when it is first asked for, so that ``import ccbench`` is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Declares what each backend can do, for every layer that asks.
import ccbench.backends as _backends  # noqa: F401 - imported for what it declares
from ccbench.version import __version__ as __version__

if TYPE_CHECKING:
    from ccbench.analysis.comparison import compare
    from ccbench.analysis.verdicts import Compared, Comparison
    from ccbench.backends import open_backend
    from ccbench.cases.axes import Case
    from ccbench.cases.measurement import Measurement, Sampling, Status
    from ccbench.errors import CcbenchError
    from ccbench.report.writing import write_report
    from ccbench.results import Point, Run, load_run, load_runs
    from ccbench.runner.run import run_suite
    from ccbench.schedules import schedule_for
    from ccbench.schedules.schedule import Phase, Schedule
    from ccbench.suite.model import Suite, load_suite

__all__ = [
    "Case",
    "CcbenchError",
    "Compared",
    "Comparison",
    "Measurement",
    "Phase",
    "Point",
    "Run",
    "Sampling",
    "Schedule",
    "Status",
    "Suite",
    "compare",
    "load_run",
    "load_runs",
    "load_suite",
    "open_backend",
    "run_suite",
    "schedule_for",
    "write_report",
]

_HOMES = {
    "Case": "ccbench.cases.axes",
    "CcbenchError": "ccbench.errors",
    "Compared": "ccbench.analysis.verdicts",
    "Comparison": "ccbench.analysis.verdicts",
    "Measurement": "ccbench.cases.measurement",
    "Phase": "ccbench.schedules.schedule",
    "Point": "ccbench.results",
    "Run": "ccbench.results",
    "Sampling": "ccbench.cases.measurement",
    "Schedule": "ccbench.schedules.schedule",
    "Status": "ccbench.cases.measurement",
    "Suite": "ccbench.suite.model",
    "compare": "ccbench.analysis.comparison",
    "load_run": "ccbench.results",
    "load_runs": "ccbench.results",
    "load_suite": "ccbench.suite.model",
    "open_backend": "ccbench.backends",
    "run_suite": "ccbench.runner.run",
    "schedule_for": "ccbench.schedules",
    "write_report": "ccbench.report.writing",
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that owns it (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ccbench' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
