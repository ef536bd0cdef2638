"""Rounds of a fleet check that follow from what was measured.

A group that hangs costs its round the times of all. The round is measured again without the group, and
later ones go without its nodes; who loses a partner gets another one. Once nothing is left, those that hung
are measured with partners that were proven fast, and then whoever else is in doubt. All of it follows from
what was measured alone, so a resumed run goes on as the run itself would have.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ccbench.analysis.fleet import second_look, verdict_of
from ccbench.analysis.fleet_times import (
    blocks_of,
    lost_groups,
    lost_partners,
    node_numbers,
    observations_of,
)
from ccbench.analysis.machine_verdict import is_end
from ccbench.cases.axes import Case, asked_of, case_of
from ccbench.results import Point, Run

FURTHER_CASES = "further_cases"
"""Entry of run.json: what was asked of cases that ``runner.run`` measured because these rounds say so."""


def further_cases(left: Sequence[Case], run: Run) -> tuple[Case, ...]:
    """Return the cases to go on with: those left, and those lost, without what hung; else a second look."""
    points = run.points
    if any(map(is_end, points)):
        return ()  # no rank can be had any more: what was measured must do
    lost = {group for point in points for group in lost_groups(point)}
    timed = {
        (_kind_of(point), group)
        for point in points
        if point.is_timed
        for group in point.members
    }
    added = {row.get("groups") for row in run.manifest.mappings(FURTHER_CASES)}
    ahead: list[Case | None] = []
    for point in (point for point in points if lost_groups(point)):
        kind = _kind_of(point)
        rest = [
            member
            for member in point.members
            if member not in lost and (kind, member) not in timed
        ]
        ahead.append(_with(kind, rest))
    for case in left:
        # In a second look are nodes that hung before: only a group that did is left out there.
        if case.groups in added:
            ahead.append(_with(case, [group for group in case.members if group not in lost]))
            continue
        out = {rank for group in lost for rank in group}
        whole = [
            (replace(case, groups=""), group) for group in case.members if not out & {*group}
        ]
        # No pair is in two rounds: where the others were timed, the round was measured without the lost.
        if not whole or not timed.issuperset(whole):
            ahead.append(without(case, out))
    measured = {point.case_id for point in points if point.complete}
    cases = [case for case in dict.fromkeys(ahead) if case and case.case_id not in measured]
    return tuple(cases) or _looked_again(run)


def _kind_of(point: Point) -> Case:
    """Return what a point asks of each of its groups."""
    return case_of({"suite": point.suite, **asked_of(point), "groups": ""})


def _with(case: Case, groups: Sequence[Sequence[int]]) -> Case | None:
    return replace(case, groups=json.dumps(sorted(groups))) if groups else None


def without(case: Case, out: Collection[int]) -> Case | None:
    """Return ``case`` without the ranks ``out``; None where nobody has a partner left.

    Groups that lose one of two equal parts are joined in pairs, in order.
    """
    kept = [[rank for rank in group if rank not in out] for group in case.members]
    lengths = [len(group) for group in case.members]
    if not case.groups or [*map(len, kept)] == lengths:
        return case
    whole = [part for part, length in zip(kept, lengths, strict=True) if len(part) == length]
    halves = [
        part for part, length in zip(kept, lengths, strict=True) if 2 * len(part) == length
    ]
    return _with(
        case,
        whole
        + [
            sorted(first + second)
            for first, second in zip(halves[::2], halves[1::2], strict=False)
        ],
    )


def _looked_again(run: Run) -> tuple[Case, ...]:
    """Return the cases of a second look: like those before, with pairs that tell nodes in doubt apart.

    Pairs of single ranks stay that: one for each place in the two nodes. Whoever was slow once alone is
    measured alone again.
    """
    measured = {point.case_id for point in run.points if point.complete}
    kinds: dict[tuple[Case, int, bool], tuple[int, ...]] = {}
    for point in run.points:
        node = node_numbers(point)
        ends = len({node[rank] for rank in point.members[0]}) if point.groups else 0
        by_rail = ends == len(point.members[0]) < ends * len(node) // len({*node})
        kinds[_kind_of(point), ends, by_rail and ends == 2] = node
    verdict, seed = verdict_of(run), run.manifest.at("suite", "seed")
    alone = [cause.nodes for cause in verdict.once if len(cause.nodes) == 1]
    again = second_look(verdict, seed if isinstance(seed, int) else 1, blocks_of(run))
    hung: Sequence[tuple[int, ...]] = [*_who_hung(run)]
    rounds: list[Sequence[tuple[int, ...]]] = [hung] if hung else [alone, *again]
    cases = []
    for nodes in filter(None, rounds):
        for (kind, ends, by_rail), node in kinds.items():
            ranks = [
                [[rank for rank, of in enumerate(node) if of == number] for number in some]
                for some in nodes
            ]
            if by_rail:
                groups = [list(rail) for both in ranks for rail in zip(*both, strict=False)]
            else:
                groups = [[rank for part in some for rank in part] for some in ranks]
            cases.append(_with(kind, groups) if ends == len(nodes[0]) else None)
    return tuple(case for case in cases if case and case.case_id not in measured)


def _who_hung(run: Run) -> Iterator[tuple[int, int]]:
    """Yield each node of a group that hung, where neither did with others, with a partner that is fast."""
    added = {row.get("groups") for row in run.manifest.mappings(FURTHER_CASES)}
    again = [point for point in run.points if point.groups in added and point.is_timed]
    looked = {
        node_numbers(point)[rank] for point in again for rank in point.communicating_ranks
    }
    observations, verdict = observations_of(run), verdict_of(run)
    partners = lost_partners(observations)
    met = {observation.nodes for observation in observations}
    free = [node for node in sorted(verdict.cleared) if node not in partners]
    proven = {node for observation in observations for node in observation.proven}
    for node, groups in sorted(partners.items()):
        explained = any(
            len(partners[member]) > 1 or member in proven
            for group in groups
            for member in group
        )
        partner = next(
            (candidate for candidate in free if tuple(sorted((node, candidate))) not in met),
            None,
        )
        if partner is not None and not explained and node not in looked:
            free.remove(partner)
            yield min(node, partner), max(node, partner)
