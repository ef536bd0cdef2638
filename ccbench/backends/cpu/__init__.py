"""The CPU backend: one process per rank, buffers in shared memory, NumPy does the arithmetic."""

from __future__ import annotations

import os

from ccbench.backends.base import Backend
from ccbench.cases.axes import Case
from ccbench.dtypes import EXACT_LIMIT
from ccbench.schedules import algorithm_row, parse_algorithm


class CpuBackend(Backend):
    """Schedules in shared memory."""

    name = "cpu"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Return what is missing: fork and shared mappings: Linux and macOS."""
        if hasattr(os, "fork"):
            return None
        return "the cpu backend forks its ranks, which this system cannot; use the simulated backend"

    def version(self) -> str:
        """Return NumPy's version; the arithmetic is its."""
        import numpy

        return f"numpy {numpy.__version__}"

    def refused(self, case: Case) -> str | None:
        """Return the reason why ``case`` cannot run here."""
        if case.op == "avg" and case.ranks > EXACT_LIMIT[case.dtype]:
            return f"the average of {case.ranks} ranks: {case.dtype} cannot hold the divisor"
        if case.algorithm == "default":
            return None
        name, parameter = parse_algorithm(case.algorithm)
        row = algorithm_row(case.collective, name)
        if parameter is None:
            parameter = row.default_parameter(case.group_ranks, case.size_bytes)
        return row.unsupported(case.group_ranks, parameter)


BACKEND = CpuBackend()
