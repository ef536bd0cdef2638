"""Options that state what a log does not say: where it was measured, on how many ranks, with which library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import click

from ccbench.cli.naming import DTYPE, MACHINE, NETWORK

if TYPE_CHECKING:
    from ccbench.readers.benchmarks.log import StatedSystem

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--machine",
        type=MACHINE,
        help="Machine they were measured on, for ranks they do not state and for predictions.",
    ),
    click.option("--nodes", type=click.IntRange(min=1), help="How many of these machines."),
    click.option(
        "--ranks",
        type=click.IntRange(min=1),
        help="Ranks where the file prints none and not all devices took part.",
    ),
    click.option(
        "--library", help="Library where the file names none, such as nccl, 'nccl 2.18' or mpi."
    ),
    click.option(
        "--dtype",
        type=DTYPE,
        help="Element type where the file names none, such as float32 or bf16.",
    ),
    click.option("--network", type=NETWORK, help="Network between them, such as ib-ndr-400x8."),
)


_OF_THE_MACHINE = (
    click.option(
        "--gpu",
        help="Model of its GPUs, where the machine's file names none, such as 'NVIDIA A100-SXM4'.",
    ),
    click.option("--pcie", help="Generation and lanes of its slots, such as 4x16, likewise."),
)


def states_the_machine(command: Command) -> Command:
    """Give ``command`` the options that ``stated_source`` takes."""
    for option in reversed(_OF_THE_MACHINE):
        command = option(command)
    return command


def stated_source(source: str | None, gpu: str | None, pcie: str | None) -> str | None:
    """Return ``source`` with what is stated of it behind a ``?``. Raises UsageError where nothing is named."""
    from ccbench.errors import UsageError

    words = {name: value for name, value in (("gpu", gpu), ("pcie", pcie)) if value}
    if words and source is None:
        raise UsageError("--gpu and --pcie complete a file that was named; name it")
    return f"{source}?{urlencode(words)}" if words else source


def states_where_measured(command: Command) -> Command:
    """Give ``command`` the options that ``stated_system`` takes."""
    for option in reversed((*_OPTIONS, *_OF_THE_MACHINE)):
        command = option(command)
    return command


def stated_system(
    machine: str | None,
    nodes: int | None,
    ranks: int | None,
    library: str | None,
    dtype: str | None,
    network: str | None,
    gpu: str | None,
    pcie: str | None,
) -> StatedSystem:
    """Return what the options state, checked before any file is read. Raises UsageError or MachineError."""
    from ccbench.dtypes import ITEM_BYTES
    from ccbench.errors import UsageError
    from ccbench.machine.detection import load_topology
    from ccbench.readers.benchmarks.log import StatedSystem
    from ccbench.readers.benchmarks.words import dtype_name
    from ccbench.topology.graph import DeviceKind
    from ccbench.topology.node_nics import parse_network

    if network is not None:
        parse_network(network)
    type_name = dtype_name(dtype or "")
    if type_name and type_name not in ITEM_BYTES:
        raise UsageError(f"--dtype {dtype}: no element type; known are {', '.join(ITEM_BYTES)}")
    machine = stated_source(machine, gpu, pcie)
    name, gpus = "", 0
    if machine is not None:
        topology = load_topology(machine)
        name = topology.name or machine
        gpus = sum(device.kind == DeviceKind.GPU for device in topology.devices)
    return StatedSystem(
        name,
        gpus or None,
        nodes,
        network or "",
        (machine or "") if gpus else "",
        ranks,
        library=library or "",
        dtype=type_name,
    )
