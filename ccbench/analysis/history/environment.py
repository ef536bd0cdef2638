"""What of a run's manifest may explain a step: versions, kernel, driver, settings; and which machine it
was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ccbench.results import Manifest
from ccbench.units import plain

LONGEST_VALUE = 80


def facts_of(manifest: Manifest) -> dict[str, str]:
    """Name -> value of everything that may change between two runs on one machine, as text.

    Names are those people use: ``kernel``, ``driver``, ``numpy``, ``NCCL_ALGO``. What a run did not record is
    absent.
    """

    def some(part: str, *names: str) -> dict[str, Any]:
        return {name: manifest.at("environment", part, name) for name in names}

    found: dict[str, Any] = {
        "machine": manifest.machine,
        **some("host", "kernel", "system", "hypervisor", "container"),
        **some("accelerators", "driver", "cuda_driver", "iommu", "modules"),
        **some("software", "python", "git_revision"),
        **manifest.mapping("environment", "software", "libraries"),
        **manifest.mapping("versions"),
        **some("processor", "governors", "boost", "smt_active", "clock_source"),
        **some("memory", "huge_pages"),
        **{f"GPU {name}": value for name, value in _gpu_settings(manifest.gpus).items()},
        **manifest.mapping("environment", "variables"),
    }
    return {name: _text(value) for name, value in found.items() if value not in (None, "", {}, [], ())}


def machine_of(manifest: Manifest, any_host: bool = False) -> str:
    """What tells machines apart: processor, cores, GPUs, and the host's name unless ``any_host``."""
    words = [] if any_host else [manifest.host]
    model, cores = manifest.processor, manifest.at("environment", "processor", "cores")
    words.append(f"{model}, {cores} cores" if model and cores else model)
    names = [_text(gpu.get("name") or "GPU") for gpu in manifest.gpus]
    words += [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return ", ".join(filter(None, words)) or manifest.machine or "machine not named"


def _gpu_settings(gpus: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Settings of all GPUs by name, where a run recorded them."""
    found: dict[str, list[Any]] = {}
    for gpu in gpus:
        for name, value in gpu.items():
            if name not in ("name", "uuid", "bus_id", "index", "serial"):
                found.setdefault(str(name), []).append(value)
    return {
        name: values[0] if values.count(values[0]) == len(values) else values
        for name, values in found.items()
    }


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """One line for every fact that differs: ``kernel 6.1 -> 6.8``."""
    names = sorted({*before, *after}, key=str.casefold)
    return tuple(
        f"{name} {before.get(name, 'not recorded')} -> {after.get(name, 'not recorded')}"
        for name in names
        if before.get(name) != after.get(name)
    )


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return plain(text, LONGEST_VALUE)
