from __future__ import annotations

from typing import Any

from ccbench.cases.axes import SETTINGS

OTHER: dict[str, Any] = {
    "groups": "rank // 2",
    "active_group": 0,
    "concurrent": "all_gather",
    "traffic": "zipf:1.2",
    "overlap_with": "matmul",
    "channels": 8,
    "transport": "host",
    "registration": "symmetric",
    "aggregation": 4,
    "misalignment_bytes": 4,
    "processes": "per_gpu",
    "memory": "device",
    "cta_policy": "zero",
    "variant": "new",
}


def test_every_setting_that_cannot_stand_alone_is_tried() -> None:
    assert {axis.name for axis in SETTINGS} - {"pair"} == set(OTHER)
