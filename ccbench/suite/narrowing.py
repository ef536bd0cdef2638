"""Suites of a command line: a sweep of one collective without a file, and a suite narrowed to a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ccbench.cases.capabilities import backend_names, capabilities_of
from ccbench.documents import FileOrigin, Steps
from ccbench.errors import CcbenchError, UsageError
from ccbench.suite.functions import backend_of
from ccbench.suite.model import IN_PLACE_COLLECTIVES, Suite, Sweep, first_error
from ccbench.units import suggestion

OPTIONS = {
    "size": "--sizes, -b, -e",
    "registration": "-R",
    "mode": "-z, -G",
    "sampling": "--rounds, -n, -w",
}
"""Keys of a suite and the options that set them, where an option has another name than its key."""


@dataclass(frozen=True)
class Narrowing:
    """Words of a command line in place of a suite: collectives to keep, keys of sweeps and of sampling, variants.

    functions: of files, that a suite measures beside what it has: in its sweeps for such devices, or in all.
    Empty mappings and tuples leave everything as the suite has it.
    """

    collectives: tuple[str, ...] = ()
    sweep: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Any] = field(default_factory=dict)
    functions: tuple[str, ...] = ()


class _CommandLine(FileOrigin):
    """Origin of a suite of options: errors name the option."""

    def error(self, path: Steps, message: str) -> CcbenchError:
        key = next((step for step in path if step in OPTIONS or step in Sweep.model_fields), "")
        option = OPTIONS.get(str(key), f"--{key}")
        return UsageError(f"{option}: {message}")


QUICK = {"rounds": 4, "budget": "200 ms", "max_ci_width": "100%"}
"""Sampling of a sweep: short, in the least rounds that comparisons can use."""


def sweep_of(collective: str, narrowing: Narrowing) -> Suite:
    """Suite of one collective, in both placements where it has two, as nccl-tests measures it."""
    placements = ["out_of_place", *(["in_place"] if collective in IN_PLACE_COLLECTIVES else [])]
    sweep = {"collective": collective, "placement": placements, **narrowing.sweep}
    if narrowing.functions:
        sweep["algorithm"] = [*narrowing.sweep.get("algorithm", ()), *narrowing.functions]
    return _checked(
        {
            "suite": collective,
            "question": f"How fast is {collective} here, by size?",
            "sweep": [sweep],
            "sampling": QUICK | dict(narrowing.sampling),
            "variants": dict(narrowing.variants),
        }
    )


def narrowed(suite: Suite, narrowing: Narrowing) -> Suite:
    """Return ``suite`` with fewer collectives, and with other sizes, types and rounds. Raises UsageError."""
    if narrowing == Narrowing():
        return suite
    document = as_written(suite)
    kept = narrowing.collectives
    for name in kept:
        if not any(name in sweep.collective for sweep in suite.sweep):
            measured = dict.fromkeys(each for sweep in suite.sweep for each in sweep.collective)
            raise UsageError(
                f"--collective {name}: suite {suite.name!r} does not measure it; {suggestion(name, measured)}"
            )
    sweeps = []
    for sweep in document["sweep"]:
        names = [name for name in sweep["collective"] if not kept or name in kept]
        sweeps += [{**sweep, **narrowing.sweep, "collective": names}] if names else []
    for word in narrowing.functions:
        on_gpus = capabilities_of(backend_of(word)).on_gpus
        alike = [
            sweep
            for sweep in sweeps
            for name in sweep.get("backends", backend_names())
            if capabilities_of(name).on_gpus == on_gpus
        ]
        for sweep in alike or sweeps:
            sweep["algorithm"] = [*sweep.get("algorithm", ["default"]), word]
    sampling = {**document.get("sampling", {}), **narrowing.sampling}
    variants = dict(narrowing.variants) or document.get("variants", {})
    return _checked({**document, "sweep": sweeps, "sampling": sampling, "variants": variants})


def as_written(suite: Suite) -> dict[str, Any]:
    """Document of ``suite`` without the keys that say what holds anyway."""
    document: dict[str, Any] = suite.model_dump(
        mode="json", by_alias=True, exclude_defaults=True
    )
    return {"suite": suite.name, **document}


def _checked(document: dict[str, Any]) -> Suite:
    try:
        return Suite.model_validate(document)
    except ValidationError as problem:
        raise first_error(problem, _CommandLine()) from None
