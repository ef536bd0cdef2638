"""Run folders of a collective library, as a measured run leaves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Conditions, Measurement, Status
from ccbench.results import RunFolder

SIZES = tuple(1 << power for power in range(3, 33, 2))


def measurement(size_bytes: int, seconds: float, **changes: Any) -> Measurement:
    """An all-reduce of float32 with NCCL on 8 ranks; changes are of the case or of the measurement."""
    of_case = {
        name: changes.pop(name) for name in list(changes) if name in Case.__dataclass_fields__
    }
    case = Case(
        "s", "nccl", "all_reduce", "default", "float32", "sum", size_bytes, size_bytes // 4, 8
    )
    one = Measurement(
        replace(case, **of_case),
        Status.OK,
        backend_version="NCCL 2.20.5",
        samples_seconds=(seconds,) * 3,
        round_samples=(3,),
        launches_per_sample=1,
    )
    return replace(one, **changes)


def flagged(size_bytes: int, seconds: float) -> Measurement:
    return measurement(size_bytes, seconds, conditions=Conditions(flags=("throttled",)))


def write_run(
    folder: Path, cases: Sequence[Measurement], manifest: Mapping[str, Any] | None = None
) -> Path:
    """A run folder of these cases."""
    with RunFolder.create(folder, {"suite": {"name": "s"}, **(manifest or {})}) as run:
        for case in cases:
            run.write(case, None)
    return folder


def sweep(sizes: Sequence[int] = SIZES, **changes: Any) -> list[Measurement]:
    """20 us and 300 GB/s."""
    return [measurement(size, 20e-6 + size / 300e9, **changes) for size in sizes]
