"""Communication of training steps, priced: one file for each plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ccbench.errors import CcbenchError
from ccbench.plan.document import read_plan, shipped_plans
from ccbench.plan.pricing import price_plan
from tests.goldens import check, text_of

GOLDENS = Path(__file__).parent / "goldens"
PLACES = (
    (None, None, None),
    ("hgx-h100", 4, "ib-ndr-400x8"),
    ("mi300x", 2, "roce-400x8"),
    ("dgx-1v", 1, None),
)
CHANGES: tuple[dict[str, str], ...] = (
    {},
    {
        "layout": "{tp: 4, pp: 2}",
        "micro_batch": "1",
        "virtual_stages": "2",
        "recompute": "full",
    },
    {"layout": "{cp: 2, dp: 4}", "zero": "3", "context_kind": "all_gather", "bucket": "1 MiB"},
    {"layout": "{tp: 2, pp: 4}", "zero": "1", "sequence_parallel": "false"},
    {"layout": "{tp: 8, dp: 3}", "gradient_dtype": "float32"},
)


def texts(path: Path) -> Iterator[str]:
    """The plan as it is, and with keys of other values."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for changes in CHANGES:
        kept = [line for line in lines if line.partition(":")[0] not in changes]
        yield "\n".join([*kept, *(f"{key}: {value}" for key, value in changes.items())])


@pytest.mark.parametrize("name", sorted(shipped_plans()))
def test_a_plan_is_priced(name: str) -> None:
    seen: list[object] = []
    for text in texts(shipped_plans()[name]):
        for place in PLACES:
            try:
                priced = price_plan(read_plan(text, name), *place)
            except CcbenchError as problem:
                seen.append(str(problem))
                continue
            seen.append(
                [
                    f"{row.communication} {row.ranks} {row.seconds:.6g} s {row.total_seconds:.6g} s {row.bottleneck}"
                    f" {row.extrapolated}"
                    for row in priced.communication
                ]
            )
    check(GOLDENS / f"{name}.json", text_of(seen))
