"""What sharing costs, against size: groups at once, beside another collective, behind a computation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ccbench.report.figure import Axis, Figure, Kind, Series
from ccbench.report.footnotes import footnote
from ccbench.report.points import provenance, series_key, series_names
from ccbench.report.sharing import Ratio, Sharing
from ccbench.report.sharing_tables import case_name
from ccbench.report.text import plural
from ccbench.results import Point

MOST_LINES = 10
"""Lines that a figure can hold and still be read; the tables have all."""

Seen = tuple[Point, Ratio]


def sharing_figures(sharing: Sharing) -> list[Figure]:
    """A figure for each question that was asked at two sizes or more."""
    groups = [(one.alone, one.ratio) for one in sharing.groups]
    beside = [(one.beside, one.whole) for one in sharing.beside]
    overlap = [(one.point, one.efficiency) for one in sharing.overlap]
    asked = (
        (
            "sharing-groups",
            "All groups at once against one alone",
            "time over that of one group alone",
            groups,
        ),
        ("sharing-beside", "Beside another collective", "time of both over that of the first", beside),
        ("sharing-overlap", "Hidden behind a computation", "share of the shorter that ran beside", overlap),
    )
    made = [_figure(key, title, label, seen) for key, title, label, seen in asked]
    return [figure for figure in made if figure is not None]


def _figure(key: str, title: str, label: str, seen: Sequence[Seen]) -> Figure | None:
    lines: dict[str, list[Seen]] = defaultdict(list)
    for point, ratio in seen:
        lines[case_name(point)].append((point, ratio))
    drawn = {name: _by_size(own) for name, own in lines.items() if len(_by_size(own)) > 1}
    if not drawn:
        return None
    shown = dict(list(drawn.items())[:MOST_LINES])
    points = [point for own in shown.values() for point, _ in own]
    word = provenance(points)
    more = f", {len(drawn) - len(shown)} more in the tables" if len(drawn) > len(shown) else ""
    return Figure(
        key=key,
        topic="sharing",
        title=f"{word + ' ' if word else ''}{title}",
        subtitle=f"{plural(len(shown), 'case')}{more} · {plural(len(points), 'point')}",
        x=Axis("size", "bytes", "log2"),
        y=Axis(label, "ratio", "linear"),
        series=tuple(_series(name, style, own) for style, (name, own) in enumerate(_named(shown).items())),
        footnote=footnote(points),
    )


def _named(lines: Mapping[str, list[Seen]]) -> dict[str, list[Seen]]:
    """Lines by the shortest words that tell them apart, beside the collective."""
    firsts = [own[0][0] for own in lines.values()]
    names = series_names(firsts)
    several = {name for name in ("dtype", "ranks") if len({getattr(one, name) for one in firsts}) > 1}

    def short_name(one: Point) -> str:
        words = [one.collective, names[series_key(one)]]
        words += [one.dtype] * ("dtype" in several) + [plural(one.ranks, "rank")] * ("ranks" in several)
        return " ".join(words)

    short = [short_name(one) for one in firsts]
    return dict(zip(short if len(set(short)) == len(short) else lines, lines.values(), strict=True))


def _by_size(seen: Sequence[Seen]) -> list[Seen]:
    """One for each size that a logarithmic axis has, rising."""
    sized = {point.size_bytes: (point, ratio) for point, ratio in seen if point.size_bytes > 0}
    return [sized[size] for size in sorted(sized)]


def _series(name: str, style: int, seen: Sequence[Seen]) -> Series:
    ends = [(ratio.low, ratio.high) for _, ratio in seen]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    whole = len(known) == len(ends)
    return Series(
        name,
        Kind.MEASURED,
        style,
        tuple(float(point.size_bytes) for point, _ in seen),
        tuple(ratio.middle for _, ratio in seen),
        tuple(low for low, _ in known) if whole else (),
        tuple(high for _, high in known) if whole else (),
        trusted=tuple(point.trusted for point, _ in seen),
    )
