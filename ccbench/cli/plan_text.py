"""What ``ccbench run --plan`` prints: every case where there are few, else lines that stand for many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ccbench.cases import AXIS
from ccbench.units import format_seconds, format_size, plural

if TYPE_CHECKING:
    from ccbench.cases import Case
    from ccbench.model import Prediction
    from ccbench.runner.planning import Plan

MOST_LISTED = 30
"""Cases that are listed one by one, and lines that are aimed at where there are more."""

JOINED = {
    "size_bytes": "sizes", "pair": "pairs", "root": "roots", "op": "ops", "dtype": "dtypes",
    "in_place": "placements", "active_group": "sets of groups at once", "traffic": "traffics",
    "overlap_with": "computations", "mode": "modes", "protocol": "protocols", "algorithm": "algorithms",
    "concurrent": "companions", "groups": "groupings", "collective": "collectives",
}  # fmt: skip
"""Axes in which the cases of one line may differ, in words for several values: as many, from the front, as
make few enough lines."""

NAMED_FIRST = ("collective", "algorithm", "dtype", "op")

Priced = tuple["Case", "Prediction | None"]


def plan_lines(plan: Plan) -> list[str]:
    """One line for each case, or for cases that differ in little, with bytes and predicted times."""
    from ccbench.runner.planning import rank_bytes

    priced = [(case, plan.context.predict(case) if plan.context else None) for case in plan.cases]
    if len(priced) > MOST_LISTED:
        return [*_joined_lines(priced), "every case: --json"]
    lines = []
    for case, price in priced:
        words = [case.case_id, case.label, f"{format_size(rank_bytes(case))} a rank"]
        words += [f"{format_seconds(price.predicted_seconds)} predicted"] if price else []
        lines.append("  ".join(words))
    return lines


def _joined_lines(priced: Sequence[Priced]) -> list[str]:
    for count in range(1, len(JOINED) + 1):
        groups: dict[Case, list[Priced]] = defaultdict(list)
        for case, price in priced:
            groups[_key(case, list(JOINED)[:count])].append((case, price))
        if len(groups) <= MOST_LISTED:
            break
    ordered = sorted(groups.items(), key=lambda item: (item[0].backend, item[0].collective, item[0].label))
    return [_line(members) for _, members in ordered]


def _key(case: Case, joined: Sequence[str]) -> Case:
    """``case`` without what cases of one line may differ in; whether a pair is both ways stays."""
    both = "both" if "<>" in case.pair else "each" if case.pair else ""
    blank = replace(case, size_bytes=0, count=0, pair=both)
    for name in joined:
        if name not in ("size_bytes", "pair"):
            blank = replace(blank, **{name: _plain(name)})
    return blank


def _line(members: Sequence[Priced]) -> str:
    """``nccl all_reduce ring float32 sum, 8 ranks: 14 cases, 8 B to 512 MiB; at most 1 GiB a rank; ...``."""
    from ccbench.runner.planning import rank_bytes

    cases = [case for case, _ in members]
    sizes = sorted({case.size_bytes for case in cases})
    span = format_size(sizes[0]) + (f" to {format_size(sizes[-1])}" if len(sizes) > 1 else "")
    count = f"{len(cases)} case" + "s" * (len(cases) > 1)
    parts = [
        f"{_words(cases)}: {count}, {span}",
        f"at most {format_size(max(map(rank_bytes, cases)))} a rank",
    ]
    times = sorted(price.predicted_seconds for _, price in members if price)
    if times:
        both_ends = dict.fromkeys((format_seconds(times[0]), format_seconds(times[-1])))
        parts.append(f"{' to '.join(both_ends)} predicted")
    return "; ".join(parts)


def _words(cases: Sequence[Case]) -> str:
    """What the cases have in common, and how many different values of what they have not."""
    first = cases[0]
    several = {name: len({getattr(case, name) for case in cases}) for name in JOINED}
    words = [first.backend]
    for name in NAMED_FIRST:
        if several[name] > 1:
            words.append(f"{several[name]} {JOINED[name]}")
        elif getattr(first, name) != "none":
            words.append(getattr(first, name))
    parts = [" ".join(words), plural(first.ranks, "rank")]
    for name in _named_last():
        if several[name] > 1:
            ways = (" both ways" if "<>" in first.pair else " one way") if name == "pair" else ""
            parts.append(f"{several[name]} {JOINED[name]}{ways}")
    return ", ".join(parts + _variation([name for name in JOINED if several[name] == 1], first))


def _variation(alike: Sequence[str], case: Case) -> list[str]:
    """Words for what differs from a plain case in what all cases of the line share."""
    blank = replace(case, **{name: _plain(name) for name in _named_last() if name not in alike})
    words = blank.label.split(", ")[1:]
    return [word for word in words if word not in (plural(case.ranks, "rank"), case.backend)]


def _named_last() -> list[str]:
    return [name for name in JOINED if name not in (*NAMED_FIRST, "size_bytes")]


def _plain(name: str) -> Any:
    """What an axis that may differ is set to; "" where no value is usual."""
    default = AXIS[name].default
    return "" if default is None else default
