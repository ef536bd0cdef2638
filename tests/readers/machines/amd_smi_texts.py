"""amd-smi topology, as text and as JSON."""

from __future__ import annotations

import json

ADDRESSES = ("0000:0c:00.0", "0000:22:00.0", "0001:38:00.0")


def table(title: str, own: str, labels: dict[tuple[int, int], str]) -> str:
    rows = [" " * 13 + " ".join(ADDRESSES)]
    for row, address in enumerate(ADDRESSES):
        cells = [
            own if row == column else labels[min(row, column), max(row, column)]
            for column in range(3)
        ]
        rows.append(" ".join([address, *(f"{cell:12}" for cell in cells)]).rstrip())
    return f"{title} TABLE:\n" + "\n".join(rows) + "\n"


def between(near: str, far: str) -> dict[tuple[int, int], str]:
    return {(0, 1): near, (0, 2): far, (1, 2): far}


TEXT = "\n".join(
    [
        table("ACCESS", "ENABLED", between("ENABLED", "DISABLED")),
        table("WEIGHT", "0", between("15", "40")),
        table("HOPS", "0", between("1", "2")),
        table("LINK TYPE", "SELF", between("XGMI", "PCIE")),
        table("NUMA BW", "N/A", between("50000-50000", "N/A")),
        table("CACHE COHERANCY", "SELF", between("C", "N/A")),
        "Legend:\n  SELF = Current GPU\n  ENABLED / DISABLED = Link is enabled or disabled\n",
    ]
)


def link(gpu: int, peer: int) -> dict[str, object]:
    is_near = {gpu, peer} == {0, 1}
    values: tuple[object, ...] = (15, "ENABLED", "XGMI", 1, "50000-50000")
    if gpu == peer:
        values = (0, "ENABLED", "SELF", 0, "N/A")
    elif not is_near:
        values = (40, "DISABLED", "PCIE", 2, "N/A")
    fields = ("weight", "link_status", "link_type", "num_hops", "bandwidth")
    return {"gpu": peer, "bdf": ADDRESSES[peer], **dict(zip(fields, values, strict=True))}


# The links of a GPU in another order than the GPUs.
JSON = json.dumps(
    [
        {
            "gpu": gpu,
            "bdf": address,
            "links": [link(gpu, peer) for peer in reversed(range(3))],
        }
        for gpu, address in enumerate(ADDRESSES)
    ],
    indent=4,
)
