"""Learning anew of the files that ccbench ships: levels and residuals of the library model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.score.keys import Report, machine_key, system_key
from benchmarks.score.learning import FREE, ON_PCIE, domain_of, fit
from benchmarks.score.logs import LogPoints
from benchmarks.score.validation import (
    anchored_systems,
    between_systems,
    folds,
    held_out_systems,
    plain_residuals,
    pooled,
    residuals_of,
)
from ccbench.documents import read_installed
from ccbench.errors import MachineError
from ccbench.model.library.calibration import Observation
from ccbench.model.library.constants import SHIPPED_FILE, LibraryConstants, shipped
from ccbench.model.library.intervals import (
    ANCHORED_FILE,
    BETWEEN_FILE,
    RESIDUALS_FILE,
    Residuals,
    is_pcie_alone,
)


def learn_from(logs: Sequence[LogPoints], report: Report) -> None:
    """Learn the shipped levels and residuals from the healthy ones of ``logs``, and write all four files.

    Machines whose GPUs PCIe alone joins are left to ``benchmarks.score.pcie``, whose levels stay. Raises MachineError
    where a file cannot be written.
    """
    healthy = [log for log in logs if log.entry.healthy and log.observations]
    joined = beside_pcie(logs)
    observations = [observation for log in joined for observation in log.observations]
    systems = len({system_key(observation.system) for observation in observations})
    points = sum(len(observation.seconds) for observation in observations)
    learned_on = (
        f"{len(joined)} published logs of healthy machines, {systems} systems, {points} points, in and "
        f"out of place, {date.today().isoformat()}"
    )
    known = shipped()
    on_pcie = known.learned_on.partition("; ")[2]
    domain = domain_of([one for log in healthy for one in log.observations])
    learned = replace(fit_beside_pcie(observations), domain=domain)
    write_constants(learned, SHIPPED_FILE, f"{learned_on}; {on_pcie}")
    left_out = folds(joined, system_key, report, fit_beside_pcie, machine_key)
    for path, tested in (
        (RESIDUALS_FILE, held_out_systems(left_out)),
        (ANCHORED_FILE, pooled(anchored_systems(left_out))),
        (BETWEEN_FILE, between_systems(left_out)),
    ):
        write_residuals(residuals_of(tested), path, f"{len(tested)} systems of {learned_on}")


def beside_pcie(logs: Sequence[LogPoints]) -> list[LogPoints]:
    """Return the healthy ones of machines whose GPUs more than PCIe joins."""
    return [
        log
        for log in logs
        if log.entry.healthy
        and log.observations
        and not is_pcie_alone(log.observations[0].system)
    ]


def fit_beside_pcie(observations: Sequence[Observation]) -> LibraryConstants:
    """Return constants whose levels suit ``observations``; those of PCIe alone are as shipped."""
    known = {level.name for level in ON_PCIE}
    fixed = {name: scale for name, scale in shipped().levels if name in known}
    free = [level for level in FREE if level.name not in known]
    return fit(observations, free=free, fixed=fixed)


def write_residuals(learned: Residuals, path: Path, learned_on: str) -> None:
    """Write ``learned``. Raises MachineError where the file cannot be written."""
    plain = plain_residuals(learned, learned_on)
    _write(path, plain, width=118, default_flow_style=None)


def write_constants(constants: LibraryConstants, path: Path, learned_on: str) -> None:
    """Write ``constants`` with four digits, and ``learned_on``: logs, systems, points and date in words.

    Raises MachineError where the file cannot be written.
    """
    domain = constants.domain
    most_nodes: dict[str, dict[str, int]] = {}
    for (kind, word), nodes in domain.most_nodes:
        most_nodes.setdefault(kind, {})[word] = nodes
    plain = {
        "learned_on": learned_on,
        "domain": {
            "most_nodes": most_nodes,
            "most_ranks_per_node": dict(domain.most_ranks_per_node),
            "largest_bytes": domain.largest_bytes,
        },
        "levels": {name: float(f"{scale:.4g}") for name, scale in constants.levels},
    }
    _write(path, plain, width=110)


def _write(path: Path, plain: Mapping[str, Any], **style: Any) -> None:
    import yaml

    try:
        read_installed.cache_clear()
        path.write_text(
            yaml.safe_dump(plain, sort_keys=False, explicit_end=True, **style), encoding="utf-8"
        )
    except OSError as error:
        raise MachineError(
            f"{path}: cannot be written ({error.strerror}); name another file"
        ) from None
