"""Options that state what a log does not say: where it was measured, on how many ranks, with which library."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import click

from ccbench.cli.naming import DTYPE, MACHINE, NETWORK

if TYPE_CHECKING:
    from ccbench.readers.benchmarks.log import StatedSystem

Command = TypeVar("Command", bound=Callable[..., Any])

_NODES = re.compile(r"(.+)x([1-9][0-9]{0,5})", re.ASCII)


def system_of(text: str) -> tuple[str, int | None, str | None]:
    """Return (machine, nodes, network) of ``hgx-h100x2/ib-ndr-400x8``; a name or a file that is there stays whole."""
    from ccbench.topology.files import catalog_names

    def is_there(name: str) -> bool:
        return name in catalog_names() or Path(name.partition("?")[0]).exists()

    # Files have slashes, too, and networks a shape behind one.
    parts = text.split("/")
    for length in range(len(parts), 0, -1) if not is_there(text) else ():
        head, network = "/".join(parts[:length]), "/".join(parts[length:]) or None
        counted = _NODES.fullmatch(head)
        if counted is not None and not is_there(head) and is_there(counted[1]):
            return counted[1], int(counted[2]), network
        if network and is_there(head) and not Path(head).is_dir():
            return head, None, network
    return text, None, None


def _stated(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Leave nodes and network of ``text`` in the parameters of these names; they were read before."""
    if text is None:
        return None
    name, *parts = system_of(text)
    for key, part in zip(("nodes", "network"), parts, strict=True):
        if part is not None and context.params.get(key) not in (None, part):
            raise click.BadParameter(
                f"{text} and --{key} {context.params[key]} contradict each other"
            )
        if part is not None:
            context.params[key] = part
    # For the line to go on with.
    context.meta["ccbench.machine"] = text
    return name


def on_machine(text: str) -> Callable[[Command], Command]:
    """Give a command ``--machine`` NAMExNODES/NETWORK with the help ``text``, and its parts as options of their own."""

    def decorated(command: Command) -> Command:
        options = (
            click.option(
                "--machine",
                type=MACHINE,
                metavar="NAMExNODES/NETWORK",
                callback=_stated,
                help=f"{text}; of several x and their number, / and the network: hgx-h100x2/ib-ndr-400x8.",
            ),
            click.option("--nodes", type=click.IntRange(min=1), is_eager=True, hidden=True),
            click.option("--network", type=NETWORK, is_eager=True, hidden=True),
        )
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


_OPTIONS = (
    on_machine(
        "Machine they were measured on: a name of 'ccbench list machines', a file, a dump"
    ),
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
)


# Behind the machine they are its own: 'topo.txt?gpu=NVIDIA L40S&pcie=4x16'.
_OF_THE_MACHINE = (click.option("--gpu", hidden=True), click.option("--pcie", hidden=True))


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
