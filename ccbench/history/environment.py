"""What of a run's manifest may explain a step: versions, kernel, driver, settings; and which machine it
was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LONGEST_VALUE = 80


def facts_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Name -> value of everything that may change between two runs on one machine, as text.

    Names are those people use: ``kernel``, ``driver``, ``numpy``, ``NCCL_ALGO``. What a run did not record is
    absent.
    """
    environment = _mapping(manifest.get("environment"))
    host, accelerators = _mapping(environment.get("host")), _mapping(environment.get("accelerators"))
    software, processor = _mapping(environment.get("software")), _mapping(environment.get("processor"))
    memory = _mapping(environment.get("memory"))
    found: dict[str, Any] = {
        "machine": _mapping(manifest.get("machine")).get("name"),
        **{name: host.get(name) for name in ("kernel", "system", "hypervisor", "container")},
        **{name: accelerators.get(name) for name in ("driver", "cuda_driver", "iommu", "modules")},
        **{name: software.get(name) for name in ("python", "git_revision")},
        **_mapping(software.get("libraries")),
        **_mapping(manifest.get("versions")),
        **{name: processor.get(name) for name in ("governors", "boost", "smt_active", "clock_source")},
        "huge_pages": memory.get("huge_pages"),
        **{f"GPU {name}": value for name, value in _gpu_settings(accelerators).items()},
        **_mapping(environment.get("variables")),
    }
    return {name: _text(value) for name, value in found.items() if value not in (None, "", {}, [], ())}


def machine_of(manifest: Mapping[str, Any], any_host: bool = False) -> str:
    """What tells machines apart: processor, cores, GPUs, and the host's name unless ``any_host``."""
    environment = _mapping(manifest.get("environment"))
    processor, accelerators = (
        _mapping(environment.get("processor")),
        _mapping(environment.get("accelerators")),
    )
    words = [] if any_host else [_text(_mapping(environment.get("host")).get("name") or "")]
    model = _text(processor.get("model") or "")
    cores = processor.get("cores")
    words.append(f"{model}, {cores} cores" if model and cores else model)
    names = [_text(_mapping(gpu).get("name") or "GPU") for gpu in accelerators.get("gpus") or []]
    words += [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    if not any(words):
        words = [_text(_mapping(manifest.get("machine")).get("name") or "machine not named")]
    return ", ".join(word for word in words if word)


def _gpu_settings(accelerators: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of all GPUs by name, where a run recorded them."""
    found: dict[str, list[Any]] = {}
    for gpu in accelerators.get("gpus") or []:
        for name, value in _mapping(gpu).items():
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


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))[:LONGEST_VALUE]
