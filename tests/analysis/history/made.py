"""Folders of runs whose history is known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.report.synthetic import sweep, write_run


def manifest(host: str = "node7", kernel: str = "6.1", **versions: str) -> dict[str, Any]:
    return {
        "suite": {"name": "allreduce"},
        "machine": {"name": "epyc-2x64"},
        "environment": {
            "host": {"name": host, "kernel": kernel},
            "processor": {"model": "AMD EPYC 7763", "cores": 128},
            "accelerators": {"driver": "570.86", "gpus": []},
            "software": {"libraries": {"numpy": "2.1"}},
        },
        "versions": {"ccbench": "0.1.0", **versions},
    }


def write_history(
    root: Path,
    levels: Sequence[float],
    changes: Mapping[int, Mapping[str, str]] | None = None,
    first: int = 0,
    last: int = 12,
    host: str = "node7",
) -> None:
    """One run a day; ``levels`` multiply its times, ``changes`` of the manifest hold from that run on."""
    random = np.random.default_rng(11)
    settings: dict[str, str] = {"host": host}
    for number, level in enumerate(levels):
        settings.update((changes or {}).get(number, {}))
        day = first + number + 1
        path = root / f"run-{host}-{day:03d}"
        slowdown = level * float(random.normal(1.0, 0.004))
        write_run(path, sweep(last=last), manifest=manifest(**settings), slowdown=slowdown)
        text = json.loads((path / "run.json").read_text())
        del text["digest"]  # of what stood there before
        text["created_at"] = f"2026-{1 + day // 28:02d}-{1 + day % 28:02d}T05:00:00+00:00"
        (path / "run.json").write_text(json.dumps(text))
