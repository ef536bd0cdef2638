"""``ccbench topo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ccbench.cli.naming import NETWORK, catalog
from ccbench.cli.output import as_json, completing, print_json
from ccbench.cli.stating import stated_source, states_the_machine, system_of

if TYPE_CHECKING:
    pass


@click.command(
    short_help="Show how GPUs, processors and NICs are connected, and what is wrong."
)
@click.argument("source", required=False, shell_complete=completing(catalog, "file"))
@click.option("--nodes", type=click.IntRange(min=1), hidden=True)
@click.option("--network", type=NETWORK, hidden=True)
@states_the_machine
@as_json
@click.option(
    "--yaml", "as_yaml", is_flag=True, help="Print a topology file on stdout, to edit and load."
)
@click.option(
    "--draw",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw it: .svg, .png or .pdf.",
)
def topo(
    source: str | None,
    nodes: int | None,
    network: str | None,
    gpu: str | None,
    pcie: str | None,
    as_json: bool,
    as_yaml: bool,
    draw: Path | None,
) -> None:
    """Show the topology of this machine, or of SOURCE.

    SOURCE is a catalog name (dgx-a100), a topology file, or what another tool printed: nvidia-smi topo -m,
    an NCCL topology XML, an NCCL log, rocm-smi --showtopo ...; - reads stdin. hgx-h100x4/ib-ndr-400x8 is a cluster
    of four; one node then shows the NICs that the network gives it.
    """
    from ccbench.errors import MachineError
    from ccbench.machine.detection import load_cluster, load_topology
    from ccbench.report.topology_text import as_text
    from ccbench.topology.diagnosis import diagnose
    from ccbench.topology.summary import is_whole, node_count, summary

    if as_json and as_yaml:
        raise click.UsageError("--json and --yaml both want stdout; choose one")
    if source is not None and nodes is None and network is None:
        source, nodes, network = system_of(source)
    if (nodes is None) != (network is None):
        raise click.UsageError("a cluster needs both: hgx-h100x4/ib-ndr-400x8")
    source = stated_source(source, gpu, pcie)
    if nodes is None or network is None:
        topology = load_topology(source)
    else:
        topology = load_cluster(source, nodes, network)
    if draw is not None:
        from ccbench.report.topology_figure import draw_topology

        draw_topology(topology, draw)
        # A picture of very many machines shows some of them.
        shown = len({device.node for device in topology.devices if device.node >= 0})
        part = (
            ""
            if is_whole(topology)
            else f": the first {shown} of {node_count(topology)} machines"
        )
        click.echo(f"wrote {draw}{part}", err=as_json or as_yaml)
    if as_json:
        print_json(summary(topology, diagnose(topology)))
    elif as_yaml:
        from ccbench.topology.files import topology_yaml

        # A topology file is the whole graph or nothing: nobody would see what one of it leaves out.
        if not is_whole(topology):
            raise MachineError(
                f"--yaml: {node_count(topology)} machines are too many for a whole graph; "
                "write one machine with --yaml and give that file with --nodes and --network"
            )
        click.echo(topology_yaml(topology), nl=False)
    elif draw is None:
        click.echo(as_text(topology, diagnose(topology)))
