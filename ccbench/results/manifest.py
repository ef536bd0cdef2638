"""run.json as one typed value: who ran what, where, and with which settings.

A manifest may be of another hand or version, so every entry may be missing or be of another kind; such an
entry counts as not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ccbench.errors import CcbenchError
from ccbench.topology.files import from_plain
from ccbench.topology.graph import Topology
from ccbench.units import plain

LONGEST_NAME = 200


@dataclass(frozen=True)
class Manifest:
    """The contents of run.json; texts are one printable line, "" where nothing is said."""

    document: Mapping[str, Any] = field(default_factory=dict)

    def at(self, *path: str) -> Any:
        """The value below ``path``; None where there is none."""
        found: Any = self.document
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def mapping(self, *path: str) -> Mapping[str, Any]:
        """The mapping below ``path``; an empty one where there is none."""
        found = self.at(*path)
        return found if isinstance(found, Mapping) else {}

    def mappings(self, *path: str) -> tuple[Mapping[str, Any], ...]:
        """The mappings in the list below ``path``."""
        found = self.at(*path)
        return tuple(one for one in found if isinstance(one, Mapping)) if isinstance(found, list) else ()

    def text(self, *path: str) -> str:
        """The text below ``path``, or the ``name`` in a mapping there."""
        found = self.at(*path)
        if isinstance(found, Mapping):
            found = found.get("name")
        return plain(found, LONGEST_NAME) if isinstance(found, str) else ""

    @property
    def suite(self) -> str:
        """The suite's name."""
        return self.text("suite", "suite") or self.text("suite")

    @property
    def host(self) -> str:
        """The host that the run was started on."""
        return self.text("environment", "host")

    @property
    def machine(self) -> str:
        """The machine that predictions were priced on."""
        return self.text("machine")

    @property
    def processor(self) -> str:
        """The model of the host's processors."""
        return self.text("environment", "processor", "model")

    @property
    def created_at(self) -> str:
        """When the run began, ISO 8601."""
        return self.text("created_at")

    @property
    def network(self) -> str:
        """What --network said when the run was made or imported, such as ``ib-ndr-400x8``."""
        return self.text("options", "network") if self.mapping("options") else self.text("network")

    @property
    def gpus(self) -> tuple[Mapping[str, Any], ...]:
        """What the environment says of each GPU."""
        return self.mappings("environment", "accelerators", "gpus")

    @property
    def ccbench_version(self) -> str:
        """The version that wrote the run: imports state it by itself, measured runs among libraries."""
        own = self.text("versions", "ccbench")
        return own or self.text("environment", "software", "libraries", "ccbench")

    @property
    def planned_cases(self) -> int:
        """How many cases the run was to have; 0 where it does not tell, as imports do not."""
        planned = self.at("planned_cases")
        return planned if isinstance(planned, int) else 0

    @cached_property
    def topology(self) -> Topology | None:
        """The graph of the machine that was detected; None where there is none, or none that can be read."""
        stored = self.at("topology")
        try:
            return from_plain(stored, "run.json: topology") if isinstance(stored, Mapping) else None
        except CcbenchError:
            return None  # of another version or hand: what needs the graph goes without
