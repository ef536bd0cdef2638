"""All checks, in the order a person would make them."""

from __future__ import annotations

from pathlib import Path

from ccbench.capabilities import backend_names
from ccbench.doctor.backends import backend_checks
from ccbench.doctor.checks import Check, Surroundings, this_system
from ccbench.doctor.gpus import gpu_checks
from ccbench.doctor.host import host_checks, results_folder
from ccbench.environment import Files, observe


def examine(
    root: Path = Path("/"), results: Path = Path("results"), surroundings: Surroundings | None = None
) -> tuple[Check, ...]:
    """Every check: the host, the GPUs and the way between them, each backend, the folder of results.

    root: the machine's files. results: the folder runs will be written to.
    """
    around = surroundings if surroundings is not None else this_system()
    files = Files(root)
    seen = observe(root, driver=around.driver)
    return (
        *host_checks(seen, around),
        *gpu_checks(seen, files, around),
        *backend_checks(backend_names(), seen, files, around),
        results_folder(results),
    )
