"""NCCL topology XML and RCCL's dialect: what ``NCCL_TOPO_DUMP_FILE`` writes and ``NCCL_TOPO_FILE`` reads.

Dumps state everything NCCL saw; the files of clouds are written by hand and leave much to the driver. Both
are trees of ``<cpu>``, ``<pci>``, ``<gpu>`` and ``<nic>`` with the links between GPUs inside ``<gpu>``.
Sources: NVIDIA/nccl src/graph/xml.cc and topo.cc, ROCm/rccl tools/topo_expl/models.
"""

from __future__ import annotations

from ccbench.errors import MachineError
from ccbench.topology.graph import Notice, Topology, TopologyClass
from ccbench.topology.readers.nccl_xml_facts import class_of, facts_of, nvswitch_of
from ccbench.topology.readers.nccl_xml_links import draw
from ccbench.topology.readers.nccl_xml_tree import collect
from ccbench.topology.xml import parse_xml, root_tag

NAME = "NCCL topology XML"


def recognises(text: str) -> bool:
    """Whether ``text`` looks like this format; never raises."""
    return root_tag(text) == "system"


def read(text: str) -> Topology:
    """The machine, or the machines, of ``text``.

    CPUs, PCIe switches, GPUs, NICs and NVSwitches with PCIe, NVLink, xGMI and C2C links in both directions.
    Rates are the file's for PCIe and C2C and the datasheet's for NVLink and xGMI, which the file only counts.
    What looks wrong is kept and noticed, what cannot be drawn is left out and noticed, each with its line.
    Raises MachineError when there is no ``<system>``.
    """
    document = parse_xml(text, NAME)
    system = next((element for element in document.root.walk() if element.tag == "system"), None)
    if system is None:
        raise MachineError(
            f"{NAME}: line {document.root.line}: <{document.root.tag}> was found, <system> was expected; "
            "give a file that NCCL_TOPO_DUMP_FILE wrote"
        )
    tree = collect(system)
    if not tree.devices and not tree.notices:
        raise MachineError(
            f"{NAME}: line {system.line}: <system> holds no processor and no device; "
            "give the whole of a file that NCCL_TOPO_DUMP_FILE wrote"
        )
    nvlinks, xgmi = draw(tree)
    found, evidence = class_of(tree, nvlinks, xgmi, system.closed)
    if found is TopologyClass.UNKNOWN:
        tree.notices.append(
            Notice("not_visible", f"NVLink or not, the file does not tell: {evidence}", system.line)
        )
    facts = facts_of(system, tree, nvlinks, xgmi)
    return Topology(
        name="nccl-xml",
        devices=tuple(tree.devices),
        links=tuple(tree.links),
        topology_class=found,
        source=NAME,
        notices=(*document.notices, *tree.notices),
        facts={**facts, "nvswitch": nvswitch_of(tree, nvlinks, found), "class_evidence": evidence},
    )
