"""Makes the seconds of figures.json anew: what SimGrid's SMPI says of its collectives on its networks.

Needs SimGrid 3.32 (Debian: libsimgrid-dev, g++). Run from the root of the repository, takes some minutes:

    python -m tests.golden.simgrid.generate

SMPI runs its own implementations of the algorithms (Casanova, Giersch, Legrand, Quinson and Suter,
"Versatile, scalable, and accurate simulation of distributed applications and platforms", 2014), so steps,
partners and orders are independent of ccbench. Stars, fat-trees, tori and one dragonfly are SimGrid's own
platforms with its own routes; ``routes`` platforms are given the routes of a ccbench fabric, so that there
only the sharing of links and the order of events are checked. The settings are plain alpha + beta n with
max-min sharing: no protocol effects. SimGrid's CM02 weighs the shares of a link by the inverse of each flow's
latency (Casanova and Marchal, "A network model for simulation of grid application", 2002), which ccbench does
not: it matters where flows of different lengths meet, as in a dragonfly. ``ends`` platforms have all latency
on the links of the hosts, so that shares are equal.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.golden.simgrid.platforms import Figure, fabric_of, rank_order

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "figures.json"

SETTINGS = (
    "smpi/simulate-computation:no",
    "network/model:CM02",
    "network/bandwidth-factor:1",
    "network/latency-factor:1",
    "network/weight-S:0",
    "network/TCP-gamma:0",
    "network/crosstraffic:0",
    "smpi/wtime:0",
    "smpi/send-is-detached-thresh:0",
    "smpi/async-small-thresh:0",
    "surf/precision:1e-11",
)

SMPI_NAMES = {
    ("all_reduce", "ring"): "smpi/allreduce:lr",
    ("all_reduce", "recursive_doubling"): "smpi/allreduce:rdb",
    ("all_reduce", "halving_doubling"): "smpi/allreduce:rab",
    ("all_gather", "ring"): "smpi/allgather:NTSLR",
    ("all_gather", "recursive_doubling"): "smpi/allgather:rdb",
    ("all_gather", "bruck"): "smpi/allgather:bruck",
    ("all_to_all", "pairwise"): "smpi/alltoall:ring",
    ("all_to_all", "direct"): "smpi/alltoall:basic_linear",
    ("reduce_scatter", "pairwise"): "smpi/reduce_scatter:mpich_pair",
    ("reduce_scatter", "ring"): "smpi/reduce_scatter:ompi_ring",
    ("reduce_scatter", "recursive_halving"): "smpi/reduce_scatter:ompi_basic_recursivehalving",
    ("broadcast", "binomial"): "smpi/bcast:binomial_tree",
    ("broadcast", "scatter_all_gather"): "smpi/bcast:scatter_LR_allgather",
    ("reduce", "binomial"): "smpi/reduce:binomial",
    ("gather", "binomial"): "smpi/gather:ompi_binomial",
    ("send_recv", "shift"): "",
}


def cluster(figure: Figure) -> str:
    """A platform of SimGrid's own making."""
    platform = figure.platform
    shape = ""
    if platform["family"] == "fat_tree":
        parts = (platform["children"], platform["parents"], [1] * len(platform["children"]))
        words = ";".join(",".join(map(str, part)) for part in parts)
        shape = f'topology="FAT_TREE" topo_parameters="{len(platform["children"])};{words}" '
    elif platform["family"] == "torus":
        shape = f'topology="TORUS" topo_parameters="{",".join(map(str, platform["sizes"]))}" '
    return (
        f'<cluster id="c" prefix="h" suffix="" radical="0-{figure.hosts - 1}" speed="1Gf" '
        f'bw="{figure.bytes_per_second:.17g}Bps" lat="{figure.latency_seconds:.17g}s" {shape}'
        'sharing_policy="SPLITDUPLEX"/>'
    )


def routed(figure: Figure) -> str:
    """Every link and route of a ccbench fabric, written out."""
    fabric = fabric_of(figure)
    lines = ['<zone id="z" routing="Full">']
    lines += [f'<host id="h{rank}" speed="1Gf"/>' for rank in range(fabric.ranks)]
    numbers = zip(fabric.link_bytes_per_second, fabric.link_latency_seconds, strict=True)
    lines += [
        f'<link id="l{link}" bandwidth="{rate:.17g}Bps" latency="{latency:.17g}s"/>'
        for link, (rate, latency) in enumerate(numbers)
    ]
    for source in range(fabric.ranks):
        for target, row in enumerate(fabric.route(source, range(fabric.ranks)).tolist()):
            if source != target:
                links = "".join(f'<link_ctn id="l{link}"/>' for link in row if link >= 0)
                lines.append(
                    f'<route src="h{source}" dst="h{target}" symmetrical="NO">{links}</route>'
                )
    return "\n".join([*lines, "</zone>"])


def simulated_seconds(figure: Figure, program: Path, folder: Path) -> float:
    """Runs SMPI once."""
    body = routed(figure) if figure.platform["family"] == "routes" else cluster(figure)
    head = "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
    platform, hosts = folder / "platform.xml", folder / "hosts"
    platform.write_text(f'{head}<platform version="4.1">\n{body}\n</platform>\n')
    hosts.write_text("".join(f"h{place}\n" for place in rank_order(figure)))
    settings = [*SETTINGS, SMPI_NAMES[figure.collective, figure.algorithm]]
    command = [
        "smpirun",
        "-np",
        str(figure.hosts),
        "-platform",
        str(platform),
        "-hostfile",
        str(hosts),
    ]
    command += [f"--cfg={setting}" for setting in settings if setting]
    command += [str(program), figure.collective, str(figure.size_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ends = [
        float(line.split()[1])
        for line in done.stdout.splitlines()
        if line.startswith("seconds ")
    ]
    if len(ends) != figure.hosts:
        raise RuntimeError(
            f"{figure}: {len(ends)} of {figure.hosts} ranks finished\n{done.stderr[-2000:]}"
        )
    return max(ends)


def main() -> None:
    """Writes figures.json anew; a case that is added to it needs no seconds yet."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "collective"
        subprocess.run(
            ["smpicc", "-O1", "-o", str(program), str(HERE / "collective.c")], check=True
        )
        for row in json.loads(FIGURES.read_text())["figures"]:
            figure = Figure(**{**row, "seconds": math.nan})
            seconds = simulated_seconds(figure, program, folder)
            rows.append({**row, "seconds": seconds})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    head = json.dumps({"simulator": "SimGrid 3.32, SMPI", "settings": SETTINGS})
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    FIGURES.write_text(f'{head[:-1]}, "figures": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
