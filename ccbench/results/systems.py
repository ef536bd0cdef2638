"""Predictions for cases that another tool measured, on the machine that the user names or the output shows.

An output may list devices that are not that machine's, which shows by their models. And a node may hold more
PCIe cards than the catalog's machine: how many is its owner's choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ccbench.cases.measurement import Measurement
from ccbench.errors import MachineError
from ccbench.model import Prediction
from ccbench.model.cluster import MOST_OF_A_HOST, Cluster, cluster_of
from ccbench.model.context import predict_case
from ccbench.model.library import Generation, LibrarySystem
from ccbench.model.library.clusters import WORDS, generations_in, nvlinks_of, pcie_generation
from ccbench.model.library.paths import P2P_VARIABLES, with_path
from ccbench.readers.benchmarks.log import (
    ImportedLog,
    ImportedTable,
    StatedSystem,
    shares_a_device,
)
from ccbench.results.points import Manifest, Point
from ccbench.topology.classes import class_of_model, is_card, is_module, topology_class
from ccbench.topology.graph import Topology, TopologyClass
from ccbench.topology.node_nics import parse_network
from ccbench.units import plural

SOCKETS = 2
"""Of a server that holds more cards than the catalog's machine; the cards are dealt to them equally."""

BETWEEN_SOCKETS = "108 GB/s"
"""Three 18 GT/s x16 links, as the catalog's machines with two sockets (ROCm documentation of MI100 nodes)."""

_ANY = re.compile(r"^(?:any|some|generic)\b", re.IGNORECASE)
"""First word of a catalog model that stands for every card of a kind."""

_SAYS_NOTHING = re.compile(
    r"\b(?:nvidia|tesla|amd|instinct|geforce|[0-9]+ ?gb?|hbm[0-9a-z]*|3e|gfx[0-9a-f]+|sxm[56]?|ac)\b"
)
"""Makers, memory (H20-3e is an H20 with HBM3e), cooling, and modules of which a model has only one."""


def bare_model(words: str) -> str:
    """A model without maker and memory, which differ between boards and say nothing about links."""
    bare = " ".join(re.findall(r"[a-z0-9]+", words.lower()))
    while (less := " ".join(_SAYS_NOTHING.sub(" ", bare).split())) != bare:
        bare = less  # words that stand together now may say nothing together
    return bare


def is_other_model(first: str, second: str) -> bool:
    """Return whether two names of GPUs surely mean different ones; False where either says too little.

    Only words with figures count, and a letter more at the end tells nothing apart (MI300 and MI300X).
    """

    def numbered(words: str) -> set[str]:
        numbers = set() if _ANY.match(words) else set(bare_model(words).split())
        numbers = {word for word in numbers if any(letter.isdigit() for letter in word)}
        return {word for word in numbers if not re.fullmatch(r"sxm[0-9]*|[0-9]", word)}

    def alike(first: str, second: str) -> bool:
        short, long = sorted((first, second), key=len)
        further = long[len(short) :]
        return long.startswith(short) and (
            not further or further[0].isalpha() or short[-1].isalpha()
        )

    left, right = numbered(first), numbered(second)
    return bool(left and right) and not any(alike(a, b) for a in left for b in right)


def remark_on_models(topology: Topology, models: Sequence[str]) -> str:
    """What to know where one of ``models`` is none of ``topology``'s GPUs; "" where all may be.

    Raises MachineError, with the cure, unless the two are cards on the same kind of slot, so that a model of links
    still holds.
    """
    gpus = topology.gpus
    own = str(gpus[0].model or topology.facts.get("gpu_model") or "") if gpus else ""
    listed = next((model for model in models if is_other_model(model, own)), None)
    if listed is None:
        return ""
    differ = f"{topology.name} has {own}, and the devices listed are {listed}"
    # Cards on slots of one PCIe generation have the same links, whatever is on the card.
    named = [generations_in(model) for model in (listed, own)]
    slots = {pcie_generation(generations[0]) if generations else None for generations in named}
    are_cards = topology_class(topology) is TopologyClass.PCIE and not is_module(listed)
    if not are_cards or len(slots) > 1:
        raise MachineError(f"{differ}; {cure(listed)}")
    return f"{differ}; predictions are for the former, on the same kind of slots"


def machines_with(model: str) -> tuple[str, ...]:
    """Machines of the catalog whose GPUs ``model`` names."""
    from ccbench.topology.files import catalog_names, load_catalog

    bare = bare_model(model)
    return tuple(
        name
        for name in catalog_names()
        if bare in map(bare_model, load_catalog(name).models[:1])
    )


def on_plain_slots(card: str) -> tuple[str, ...]:
    """The machine of the catalog with plain slots of the card's generation."""
    from ccbench.topology.files import catalog_names

    generation = next(iter(generations_in(card)), Generation.UNKNOWN)
    plain = f"pcie{pcie_generation(generation)}-x16"
    return (plain,) if plain in catalog_names() else ()


def machines_of(
    model: str, gpus: int, highest: int, peer_access: bool | None = None
) -> tuple[str, ...]:
    """Machines of the catalog that a node with ``gpus`` GPUs of ``model`` may be; one alone where it is sure.

    highest: the highest number of a GPU. peer_access: between PCIe cards; None where nobody tells.
    """
    from ccbench.topology.files import load_catalog

    named = [load_catalog(name) for name in machines_with(model)]
    generation = next(iter(generations_in(model)), Generation.UNKNOWN)
    if gpus == 1:
        return tuple(
            machine.name for machine in named[:1]
        )  # what joins the GPUs of a node does not matter
    if is_card(model):
        # Cards may have NVLink bridges, and whether others reach each other is up to drivers and clouds.
        if nvlinks_of(model) or peer_access is None:
            names = tuple(machine.name for machine in named)
            return names + on_plain_slots(model) if len(names) == 1 else names
        return tuple(
            machine.name for machine in named if machine.facts.get("peer_access") is peer_access
        )
    # Boards of other makers exist in one form. An NVSwitch board may be used in part; of direct links the
    # catalog's form is sure only where it is whole.
    form = class_of_model(model, highest)
    only = generation in (
        Generation.CDNA2,
        Generation.CDNA3,
        Generation.CDNA4,
        Generation.ASCEND,
    )
    switched = form.certain and form.nvswitch is not False
    whole = {form.topology_class, *form.candidates} - {TopologyClass.NVSWITCH}
    # A part of a board of direct links looks like a part of one with switches.
    meshes = [machine for machine in named if machine.topology_class in form.candidates]
    if form.nvswitch is None and len({machine.topology_class for machine in meshes}) > 1:
        return tuple(machine.name for machine in meshes if len(machine.gpus) >= gpus)
    return tuple(
        machine.name
        for machine in named
        if (
            (only or (switched and machine.topology_class is TopologyClass.NVSWITCH))
            and len(machine.gpus) >= gpus
        )
        or (machine.topology_class in whole and len(machine.gpus) == gpus)
    )


_SUPERCHIP = re.compile(r"\bGB[23]00\b", re.IGNORECASE)
"""Sold in racks behind NVLink switches; boards of four without them (NVL4) are rare."""


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
    from ccbench.documents import read_installed
    from ccbench.topology.files import CATALOG_FOLDER, catalog_names, expand

    held, name, short = len(node.gpus), source.lower(), None
    if node.topology_class is TopologyClass.PCIE and name in catalog_names():
        short = read_installed(CATALOG_FOLDER / f"{name}.yaml")
    # Only the catalog's short form tells switches from slots, and cards that are joined by more stay as they
    # are.
    if short is None or "pcie" not in short or {"nvswitch", "mesh"} & set(short):
        raise MachineError(
            f"{node.name}: has {held} GPUs and {count} of one node took part; name a machine with as many, "
            "or a file that describes it"
        )
    pcie = {"between_cpus": BETWEEN_SOCKETS, **short["pcie"], "cpus": SOCKETS}
    made = {**short, "gpus": {**short["gpus"], "count": count}, "pcie": pcie}
    try:
        return expand(made, node.name)
    except MachineError:
        raise MachineError(
            f"{node.name}: has {held} GPUs, and {count} of one node do not spread evenly over its switches "
            f"on {SOCKETS} sockets; give a file that describes the machine"
        ) from None


def recognised(log: ImportedLog, system: StatedSystem) -> tuple[StatedSystem, tuple[str, ...]]:
    """``system`` with the machine and network that ``log`` shows, where the user named none, and what to tell.

    log: with the ranks and nodes of its tables. What is notes: what was guessed from which lines of the
    source, or what is missing and what to type.
    """
    notes = []

    def taken(option: str, name: str, why: str) -> str:
        return f"{log.source}: taken as --{option} {name}: {why}; if it is another, name that"

    system = replace(system, path=path_shown(log))
    tables = [table for table in log.tables if (table.ranks or 0) > 1]
    if not system.machine and tables:
        machine, why = _machine_shown(log, tables, system)
        if machine:
            notes.append(taken("machine", machine, why))
            system = replace(system, machine=machine, source=machine)
        else:
            notes.append(f"{log.source}: no predictions: {why}")
    if system.source and not system.network and any((table.nodes or 0) > 1 for table in tables):
        network, why = _network_shown(log, system.source)
        if network:
            notes.append(taken("network", network, why))
            system = replace(system, network=network)
        elif why:
            notes.append(f"{log.source}: {why}")
    return system, tuple(notes)


def path_shown(log: ImportedLog) -> tuple[tuple[str, str], ...]:
    """Return what ``log`` shows of the path between GPUs of a node: ``StatedSystem.path``.

    One channel through host memory slows the ring that it is in, so that one such line decides.
    """
    ways = {
        "P2P" if " via P2P" in hint else "SHM"
        for hint in log.hints
        if re.search(r" via (?:P2P|SHM)", hint)
    }
    shown = {"channels": max(ways)} if ways else {}
    shown |= {
        name: str(log.environment[name]) for name in P2P_VARIABLES if name in log.environment
    }
    return tuple(shown.items())


def _machine_shown(
    log: ImportedLog, tables: Sequence[ImportedTable], system: StatedSystem
) -> tuple[str, str]:
    """(machine of the catalog, why); "" where the output leaves it open, and then why says what to type."""
    option = "give --machine ('ccbench list machines')"
    devices = [device for device in log.devices if device.model]
    models = list(dict.fromkeys(bare_model(device.model) for device in devices))
    if not models:
        return "", f"the output does not say which GPUs were measured; {option}"
    model, lines = devices[0].model, sorted(device.line for device in devices)
    where = (
        f"lines {lines[0]} to {lines[-1]} list"
        if lines[-1] > lines[0]
        else f"line {lines[0]} lists"
    )
    where = where if lines[0] else "it lists"
    if len(models) > 1:
        return (
            "",
            f"{where} several models ({', '.join(models)}), of which no machine is modelled",
        )
    if shares_a_device(devices):
        return "", f"{where} a GPU for several ranks, which is not modelled"
    each = [
        -(-(table.ranks or 1) // nodes)
        for table in tables
        if (nodes := table.nodes or system.nodes)
    ]
    if len(each) < len(tables):
        return (
            "",
            f"{where} {model}, and nothing says on how many nodes; give --nodes, and --machine",
        )
    # How cards reach each other shows in the lines on channels, where the output has them.
    way = dict(system.path).get("channels")
    peers = way == "P2P" if way else None
    highest = max([max(each) - 1, *(device.device or 0 for device in devices)])
    machines = machines_of(model, max(each), highest, peers)
    which = machines or machines_with(model)
    if not which and is_card(model):
        which = on_plain_slots(model)  # a card that the catalog does not have
    alone = all((table.nodes or system.nodes) == 1 for table in tables)
    # Of one node of a rack, or one card, what joins it to others does not matter.
    sure = bool(machines_with(model)) and (
        max(each) == 1 or (alone and _SUPERCHIP.search(model))
    )
    if which and (len(machines) == 1 or (len(which) == 1 and sure)):
        return which[0], f"{where} {model}, {max(each)} in a node"
    if not which:
        return "", f"{where} {model}, for which the catalog has no machine; {option} or a file"
    open_question = f"what joins {max(each)} of them" if max(each) > 1 else "its slot"
    return (
        "",
        f"{where} {model}, not {open_question}; give --machine, such as {which[0]}",
    )


def _network_shown(log: ImportedLog, machine: str) -> tuple[str, str]:
    """(network, why); "" where its kind, rate or number of NICs is not shown, and then why says what is."""
    if built_in := WORDS["machine_networks"].get(machine):
        return built_in, f"{machine} has it built in"
    shown_network = log.facts.get("network", {})
    used, ports, rates = (
        str(shown_network.get("used", "")),
        shown_network.get("ports", {}),
        shown_network.get("gigabits", {}),
    )
    topology_file = log.environment.get("NCCL_TOPO_FILE", "").rpartition("/")[2]
    instance = WORDS["instance_networks"].get(topology_file.removesuffix("-topo.xml"))
    line = f"line {shown_network.get('used_line')} names {used} as the network"
    if instance and used != "Socket" and len(ports) in (0, parse_network(instance).nics):
        return instance, f"NCCL_TOPO_FILE is {topology_file}"
    if used == "Socket" or not ports:
        example = {"efa": "efa-100x4", "Socket": "tcp-25x1"}.get(used, "ib-ndr-400x8")
        return "", f"{line} and not its rate; type --network, such as {example}" if used else ""
    links, speeds = set(ports.values()), {rates.get(name) for name in ports}
    line = f"line {shown_network['ports_line']} shows {plural(len(ports), 'port')} of {' and '.join(sorted(links))}"
    # NICs for GPUs come in powers of two; one more may be the storage's.
    if (
        len(links) == len(speeds) == 1
        and len(ports).bit_count() == 1
        and (rate := speeds.pop())
    ):
        return f"{links.pop().lower()}-{rate:g}x{len(ports)}", f"{line} of {rate:g} Gb/s"
    return (
        "",
        f"{line} and not one rate of all; type --network, such as ib-ndr-400x{len(ports)}",
    )


class Pricer:
    """Prices every case of an import.

    ``problems`` holds why some cannot be priced, ``remarks`` what else to know of them: once each, in order.
    """

    def __init__(self) -> None:
        self.problems: dict[str, None] = {}
        self.remarks: dict[str, None] = {}

    def price(
        self, measurement: Measurement, log: ImportedLog, system: StatedSystem, table: int = 1
    ) -> Prediction | None:
        """None where no machine was named or shown, or where it is not what was measured.

        table: number of the case's table in ``log``, from 1.
        """
        case, source = measurement.case, system.source
        if not source:
            return None
        try:
            models = [device.model for device in log.devices if device.model]
            if remark := remark_on_models(_node(source), models):
                self.remarks.setdefault(remark)
            cluster = cluster_on(system, case.ranks, case.nodes)
        except MachineError as error:
            self.problems.setdefault(f"no predictions for {case.ranks} ranks: {error}")
            return None
        held, taken = len(_node(source).gpus), len(cluster.node.gpus)
        if taken > held:
            self.remarks.setdefault(
                f"predictions for {case.ranks} ranks: {cluster.node.name} of the catalog has {held} GPUs, "
                f"and {taken} of one node took part; taken to be on two sockets"
            )
        if cluster.stated is not None:
            self.remarks.setdefault(
                f"predictions for {case.ranks} ranks: {taken} of {held} GPUs of a node took part, taken to "
                f"use the NICs beside them, {cluster.network} of {cluster.stated}; bounds are of all NICs"
            )
        logged_table = log.tables[table - 1] if 0 < table <= len(log.tables) else None
        launched_on = 1 if case.ranks <= case.nodes else gpus_per_process(log, logged_table)
        if launched_on is None and log.tool.endswith("-tests"):
            self.remarks.setdefault(
                f"{log.source}: does not say how many GPUs one thread launches on (nccl-tests -g); small "
                "sizes are priced for one, and may take longer"
            )
        most = None if launched_on is None else min(launched_on, case.ranks)
        version = version_in(*versions_of(log))
        if not version and log.library == "NCCL":
            self.remarks.setdefault(
                "logs without a version of NCCL are priced as of a current one; --library 'nccl 2.18' states it"
            )
        return predict_case(case, cluster, gpus_per_process=most, version=version)


@lru_cache(maxsize=16)
def _node(source: str) -> Topology:
    from ccbench.machine.detection import load_topology

    return load_topology(source)


def recorded_system(manifest: Manifest, point: Point) -> LibrarySystem:
    """The library's view of the machine that the prediction of ``point`` was priced on, as run.json has it.

    Raises MachineError where it names none or does not hold it, or where the ranks do not fit on it.
    """
    from ccbench.topology.files import catalog_names

    stated = system_stated(manifest, point)
    name = stated.machine
    if not name:
        raise MachineError(
            "the run does not name its machine; give --machine (of several nodes --network)"
        )
    if name in catalog_names():
        return cluster_on(replace(stated, source=name), point.ranks, point.nodes).system
    if manifest.topology is None or manifest.topology.name != name:
        raise MachineError(
            f"run.json does not hold the machine {name}; name one of 'ccbench list machines'"
        )
    node = with_path(manifest.topology, dict(stated.path))
    nodes = point.nodes or stated.nodes
    return cluster_of(node, nodes, stated.network or None, point.ranks).system


def system_stated(manifest: Manifest, point: Point) -> StatedSystem:
    """Return what run.json states of the system of ``point``: machine, nodes, network and path."""
    # Files of one import may be of several machines.
    file = manifest.imported(point.source)
    name, network = (file.text(key) or getattr(manifest, key) for key in ("machine", "network"))
    # Hosts that a log counts are those of the point; how many machines they are only the user can say.
    nodes = manifest.at("nodes")
    return StatedSystem(
        name,
        nodes=nodes if isinstance(nodes, int) else None,
        network=network,
        path=path_recorded(manifest, point),
    )


def path_recorded(manifest: Manifest, point: Point) -> tuple[tuple[str, str], ...]:
    """Return what the log of ``point``, or the variables of its run, show of the path: ``StatedSystem.path``."""
    of_run = {} if point.tool else manifest.mapping("environment", "variables")
    seen = {
        **manifest.imported(point.source).mapping("path"),
        **{key: of_run[key] for key in P2P_VARIABLES if key in of_run},
    }
    return tuple((key, str(word)) for key, word in seen.items())


@lru_cache(maxsize=64)
def cluster_on(system: StatedSystem, ranks: int, nodes: int) -> Cluster:
    """The machine that was measured: what the log shows of its nodes counts before what the user says."""
    node = _node(system.source)
    if len(node.gpus) > MOST_OF_A_HOST:
        if nodes and system.nodes == nodes:
            # The user counts hosts as the log does, and their NICs; several share this machine's links.
            racks = -(-ranks // len(node.gpus))
            one = parse_network(system.network) if system.network else None
            network = "" if one is None else str(replace(one, nics=one.nics * nodes // racks))
            system = replace(system, nodes=racks, network=network)
        nodes = 0  # the log counts hosts
    # A log may not tell how its ranks were spread: full nodes are what people run.
    spread = nodes or system.nodes or -(-ranks // max(1, len(node.gpus)))
    per_node = -(-ranks // spread)
    if node.gpus and per_node > len(node.gpus):
        node = with_cards(node, system.source, per_node)
    node = with_path(node, dict(system.path))
    return cluster_of(node, spread, system.network or None, ranks)


_VERSION = re.compile(r"(?:[NR]CCL )?([0-9]{1,3})\.([0-9]{1,3})(?:\.([0-9]{1,3}))?")


def versions_of(log: ImportedLog) -> tuple[str, str]:
    """Return the words of a log for its versions of NCCL and of RCCL, "" where it has none."""
    return log.versions.get("NCCL", ""), log.versions.get("RCCL", "")


def version_in(*texts: str) -> tuple[int, ...]:
    """The version that the first of ``texts`` with one says, such as (2, 23, 4); () where none does."""
    found = next(filter(None, map(_VERSION.match, texts)), None)
    return tuple(int(part) for part in found.groups() if part) if found else ()


_A_PROCESS_EACH = frozenset({"torch-all-reduce-bench", "param", "hccl_test", "job"})
"""Tools that have no other form: torchrun and mpirun start a process for each device; so do jobs."""


def gpus_per_process(log: ImportedLog, table: ImportedTable | None) -> int | None:
    """GPUs that one thread launched on, of the table itself, else of the log; None where neither tells."""
    for facts in (table.facts if table is not None else {}, log.facts):
        for name in ("gpus_per_thread", "ngpus"):  # of nccl-tests' text, and of its JSON
            count = facts.get(name)
            if isinstance(count, int) and count > 0:
                return count
    return 1 if log.tool in _A_PROCESS_EACH else None
