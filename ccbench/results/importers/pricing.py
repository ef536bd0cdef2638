"""Predictions for cases that another tool measured, on the machine that the user names.

An output may list devices that are not that machine's, which shows by their models. And a node may hold more
PCIe cards than the catalog's machine: how many is its owner's choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ccbench.cases import Measurement
from ccbench.errors import MachineError
from ccbench.model import Prediction
from ccbench.model.cluster import Cluster, cluster_of
from ccbench.model.context import predict_case
from ccbench.model.library.clusters import generations_in, pcie_generation
from ccbench.results.importers.log import ImportedLog, ImportedTable
from ccbench.results.importers.ranks import Given
from ccbench.topology.classes import is_module, topology_class
from ccbench.topology.graph import Topology, TopologyClass

SOCKETS = 2
"""Of a server that holds more cards than the catalog's machine; the cards are dealt to them equally."""

BETWEEN_SOCKETS = "108 GB/s"
"""Three 18 GT/s x16 links, as the catalog's machines with two sockets (ROCm documentation of MI100 nodes)."""

_ANY = re.compile(r"^(?:any|some|generic)\b", re.IGNORECASE)
"""First word of a catalog model that stands for every card of a kind."""

_SAYS_NOTHING = re.compile(r"\b(?:nvidia|tesla|amd|instinct|geforce|[0-9]+ ?gb|hbm[0-9a-z]*)\b")


def bare_model(words: str) -> str:
    """A model without maker and memory, which differ between boards and say nothing about links."""
    bare = " ".join(re.findall(r"[a-z0-9]+", words.lower()))
    while (less := " ".join(_SAYS_NOTHING.sub(" ", bare).split())) != bare:
        bare = less  # words that stand together now may say nothing together
    return bare


def is_other_model(one: str, other: str) -> bool:
    """Return whether two names of GPUs surely mean different ones; False where either says too little.

    Only words with figures count, and a letter more at the end tells nothing apart (MI300 and MI300X).
    """

    def numbered(words: str) -> set[str]:
        found = set() if _ANY.match(words) else set(bare_model(words).split())
        found = {word for word in found if any(letter.isdigit() for letter in word)}
        return {word for word in found if not re.fullmatch(r"sxm[0-9]*|gfx[0-9a-f]+|[0-9]+g|[0-9]", word)}

    def alike(one: str, other: str) -> bool:
        short, long = sorted((one, other), key=len)
        further = long[len(short) :]
        return long.startswith(short) and (not further or further[0].isalpha() or short[-1].isalpha())

    left, right = numbered(one), numbered(other)
    return bool(left and right) and not any(alike(a, b) for a in left for b in right)


@dataclass(frozen=True)
class Difference:
    """Model that was listed, and the machine's own.

    same_links: whether the two are cards on the same kind of slot, so that a model of links still holds.
    """

    listed: str
    machine: str
    model: str
    same_links: bool

    def __str__(self) -> str:
        return f"{self.machine} has {self.model}, and the devices listed are {self.listed}"


def difference(topology: Topology, models: Sequence[str]) -> Difference | None:
    """The first of ``models`` that is none of ``topology``'s GPUs; None where all may be."""
    gpus = topology.gpus
    own = str(gpus[0].attributes.get("model") or topology.facts.get("gpu_model") or "") if gpus else ""
    listed = next((model for model in models if is_other_model(model, own)), None)
    if listed is None:
        return None
    # Cards on slots of one PCIe generation have the same links, whatever is on the card.
    named = [generations_in(model) for model in (listed, own)]
    slots = {pcie_generation(found[0]) if found else None for found in named}
    are_cards = topology_class(topology) is TopologyClass.PCIE and not is_module(listed)
    return Difference(listed, topology.name, own, are_cards and len(slots) == 1)


def machines_with(model: str) -> tuple[str, ...]:
    """Machines of the catalog whose GPUs ``model`` names."""
    from ccbench.topology.files import catalog_names, load_catalog

    wanted = bare_model(model)
    found = []
    for name in catalog_names():
        gpus = load_catalog(name).gpus
        own = str(gpus[0].attributes.get("model", "")) if gpus else ""
        if own and bare_model(own) == wanted:
            found.append(name)
    return tuple(found)


def cure(model: str) -> str:
    """Return the option that names a machine with ``model``, for the end of an error."""
    names = machines_with(model)
    if names:
        return f"name --machine {' or '.join(names)}"
    return "name a machine that has them, or a file that describes it"


def with_cards(node: Topology, source: str, count: int) -> Topology:
    """``node`` with ``count`` GPUs, on two sockets with the same switches each.

    source: what named ``node``. Raises MachineError where it is no machine of plain PCIe cards of the
    catalog (boards hold what they hold), or where so many do not spread evenly.
    """
    from ccbench.suite.documents import read_machine_document
    from ccbench.topology.files import CATALOG_FOLDER, catalog_names, expand

    held, name, short = len(node.gpus), source.lower(), None
    if node.topology_class is TopologyClass.PCIE and name in catalog_names():
        short = read_machine_document(CATALOG_FOLDER / f"{name}.yaml")
    # Only the catalog's short form tells switches from slots, and cards that are joined by more stay as they
    # are.
    if not isinstance(short, dict) or "pcie" not in short or {"nvswitch", "mesh"} & set(short):
        raise MachineError(
            f"{node.name}: has {held} GPUs and {count} of one node took part; name a machine with as many, "
            "or a file that describes it"
        )
    pcie = {"between_cpus": BETWEEN_SOCKETS, **short["pcie"], "cpus": SOCKETS}
    made = {**short, "gpus": {**short["gpus"], "count": count}, "pcie": pcie}
    try:
        return expand(made, node.name, f"{node.name} with {count} GPUs")
    except MachineError:
        raise MachineError(
            f"{node.name}: has {held} GPUs, and {count} of one node do not spread evenly over its switches "
            f"on {SOCKETS} sockets; give a file that describes the machine"
        ) from None


class Pricer:
    """Prices every case of an import.

    ``problems`` holds why some cannot be priced, ``remarks`` what else to know of them: once each, in order.
    """

    def __init__(self, given: Given) -> None:
        self._given = given
        self.problems: dict[str, None] = {}
        self.remarks: dict[str, None] = {}

    def price(self, measurement: Measurement, log: ImportedLog, table: int = 1) -> Prediction | None:
        """None where no machine was named, or where it is not what was measured.

        table: number of the case's table in ``log``, from 1.
        """
        case, source = measurement.case, self._given.source
        if not source:
            return None
        try:
            models = tuple(dict.fromkeys(device.model for device in log.devices if device.model))
            found = _difference(source, models)
            if found is not None and not found.same_links:
                raise MachineError(f"{found}; {cure(found.listed)}")
            if found is not None:
                self.remarks.setdefault(f"{found}; predictions are for the former, on the same kind of slots")
            cluster = _cluster(self._given, case.ranks, case.nodes)
        except MachineError as error:
            self.problems.setdefault(f"no predictions for {case.ranks} ranks: {error}")
            return None
        held, taken = len(_node(source).gpus), len(cluster.node.gpus)
        if taken > held:
            self.remarks.setdefault(
                f"predictions for {case.ranks} ranks: {cluster.node.name} of the catalog has {held} GPUs, "
                f"and {taken} of one node took part; taken to be on two sockets"
            )
        one = log.tables[table - 1] if 0 < table <= len(log.tables) else None
        launched_on = 1 if case.ranks <= case.nodes else gpus_per_process(log, one)
        if launched_on is None:
            self.remarks.setdefault(
                f"{log.source}: does not say how many GPUs one thread launches on (nccl-tests -g); small "
                "sizes are priced for one, and may take longer"
            )
        most = None if launched_on is None else min(launched_on, case.ranks)
        return predict_case(case, cluster, gpus_per_process=most)


@lru_cache(maxsize=16)
def _node(source: str) -> Topology:
    from ccbench.machine.detection import load_topology

    return load_topology(source)


@lru_cache(maxsize=64)
def _difference(source: str, models: tuple[str, ...]) -> Difference | None:
    return difference(_node(source), models)


@lru_cache(maxsize=64)
def _cluster(given: Given, ranks: int, nodes: int) -> Cluster:
    """The machine that was measured: what the log shows of its nodes counts before what the user says."""
    node = _node(given.source)
    # A log may not tell how its ranks were spread: full nodes are what people run.
    spread = nodes or given.nodes or -(-ranks // max(1, len(node.gpus)))
    per_node = -(-ranks // spread)
    if node.gpus and per_node > len(node.gpus):
        node = with_cards(node, given.source, per_node)
    return cluster_of(node, spread, given.network or None, ranks)


_A_PROCESS_EACH = frozenset({"torch-all-reduce-bench", "param", "hccl_test"})
"""Tools that have no other form: torchrun and mpirun start a process for each device."""


def gpus_per_process(log: ImportedLog, table: ImportedTable | None) -> int | None:
    """GPUs that one thread launched on, of the table itself, else of the log; None where neither tells."""
    for facts in (table.facts if table is not None else {}, log.facts):
        for name in ("gpus_per_thread", "ngpus"):  # of nccl-tests' text, and of its JSON
            said = facts.get(name)
            if isinstance(said, int) and said > 0:
                return said
    return 1 if log.tool in _A_PROCESS_EACH else None
