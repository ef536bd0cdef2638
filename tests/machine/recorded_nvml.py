"""The driver's answers from JSON: what a machine said once, or what it would say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ccbench.machine.accelerators import Missing, Nvml

OF_A_GPU = {
    "Name": "name",
    "PerformanceState": "performance_state",
    "CudaComputeCapability": "compute_capability",
    "NumaNodeId": "own_numa_node",
}
OF_A_LINK = {"NvLinkState": "up", "NvLinkVersion": "version", "NvLinkRemoteDeviceType": "type"}
OF_TWO_GPUS = {"TopologyCommonAncestor": "ancestors", "P2PStatus": "peers"}
OF_PCIE = (
    "CurrPcieLinkGeneration",
    "CurrPcieLinkWidth",
    "MaxPcieLinkGeneration",
    "MaxPcieLinkWidth",
)


class RecordedNvml(Nvml):
    """Answers as the file has them: a question left out was not supported, "?" could not be asked.

    gpus: one mapping each, from the name of a question to its answer; links are a list under ``links`` with
    ``up``, ``version``, ``type`` and ``bus_id``; ancestors and peers are matrices of the whole machine.
    """

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__(None)
        self.answers = answers

    def ask(self, question: str, *arguments: Any) -> Any:
        if question in ("DeviceGetCount", "SystemGetDriverVersion"):
            return (
                len(self.answers["gpus"])
                if "Count" in question
                else self.answers.get("driver", "550.54.15")
            )
        gpu, name = arguments[0], question.removeprefix("DeviceGet")
        if name == "HandleByIndex":
            return gpu
        if name in OF_TWO_GPUS:
            table = self.answers.get(OF_TWO_GPUS[name])
            return table[gpu][arguments[1]] if table else Missing.NOT_THERE
        if name in OF_A_LINK:
            return self._link(gpu, arguments[1], OF_A_LINK[name])
        if name in OF_PCIE:
            pcie = self._of(gpu, "pcie")
            return pcie if isinstance(pcie, Missing) else pcie[OF_PCIE.index(name)]
        if name in ("PciInfo", "NvLinkRemotePciInfo"):
            found = (
                self._link(gpu, arguments[1], "bus_id")
                if len(arguments) > 1
                else self._of(gpu, "bus_id")
            )
            return found if isinstance(found, Missing) else SimpleNamespace(busId=found)
        if name == "MigMode":
            split = self._of(gpu, "mig")
            return split if isinstance(split, Missing) else [split, split]
        if name == "MemoryAffinity":
            nodes = self._of(gpu, "numa_nodes")
            return nodes if isinstance(nodes, Missing) else [sum(1 << node for node in nodes)]
        return self._of(gpu, OF_A_GPU.get(name, name))

    def fabric_state(self, handle: Any) -> tuple[int, int] | None:
        found = self._of(handle, "fabric")
        return None if isinstance(found, Missing) else found

    def _of(self, gpu: int, question: str) -> Any:
        answer = self.answers["gpus"][gpu].get(question, Missing.NOT_THERE)
        return Missing.NOT_VISIBLE if answer == "?" else answer

    def _link(self, gpu: int, link: int, question: str) -> Any:
        links = self._of(gpu, "links")
        if isinstance(links, Missing) or link >= len(links):
            return Missing.NOT_THERE
        answer = links[link].get(question, Missing.NOT_THERE)
        return Missing.NOT_VISIBLE if answer == "?" else answer


def switched(
    model: str,
    count: int,
    links: int,
    version: int,
    bus_ids: list[str] | None = None,
    hidden: bool = False,
) -> dict[str, Any]:
    """Answers of a machine with NVSwitches; ``hidden`` switches have no address, as in a VM."""
    addresses = bus_ids or [f"00000000:{place + 1:02X}:00.0" for place in range(count)]
    switches = (
        ["ffffffff:ff:ff.0"]
        if hidden
        else [f"00000000:{0xC0 + index:02X}:00.0" for index in range(6)]
    )
    one_link = [
        {"up": True, "version": version, "type": 2, "bus_id": switches[link % len(switches)]}
        for link in range(links)
    ]
    gpus = [
        {
            "name": model,
            "bus_id": address,
            "performance_state": 0,
            "mig": False,
            "fabric": [3, 0],
            "links": [dict(link) for link in one_link],
            "numa_nodes": [0],
            "pcie": [4, 16, 4, 16],
        }
        for address in addresses
    ]
    return {"gpus": gpus, "ancestors": _square(count, 50), "peers": _square(count, 0)}


def cards(model: str, count: int, peer: int, ancestor: int = 30) -> dict[str, Any]:
    """Answers of a machine whose GPUs have only PCIe."""
    gpus = [
        {"name": model, "bus_id": f"00000000:{place + 1:02X}:00.0", "performance_state": 8}
        for place in range(count)
    ]
    return {"gpus": gpus, "ancestors": _square(count, ancestor), "peers": _square(count, peer)}


def _square(count: int, value: int) -> list[list[int]]:
    return [[value] * count for _ in range(count)]
