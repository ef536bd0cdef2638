"""Lines of ProcessGroupNCCL's watchdog in the log of a PyTorch job that hung: how far each rank came.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of github.com/pytorch/pytorch, 1.13 to 2.9. Three kinds of
lines say something: the call that timed out (``WorkNCCL(SeqNum=...)``), which until 2.9 does not name its group;
the last calls that were enqueued and completed in a group, which does; and that of the heartbeat monitor, by which
the watchdog itself is stuck, which says nothing of calls. The rank in brackets is the place in
the group; from 2.2 on ``[rank3]:`` before the line is the rank of the job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ccbench.findings import SourceWarning
from ccbench.readers.lines import whole
from ccbench.readers.traces.events import Communication, GroupProgress, ProcessGroup, Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.groups import MOST_RANKS
from ccbench.readers.traces.words import collective_of
from ccbench.units import plain

MOST_APART = 100
"""Numbers of calls that time out together in one group: as many as a rank may have enqueued."""

LONGEST_LINE = 1 << 16
"""Bytes of a line; the watchdog's are below 1 KiB."""

PLACES = "lines without [rankN]: name places in groups, which are taken for ranks"

_SIGNS = (
    b"Watchdog caught collective operation timeout",
    b"ast enqueued",
    b"watchdog got stuck",
    b"Heartbeat monitor timed out",
)

STUCK = "stuck: its watchdog made no progress"
"""Trouble of a rank whose watchdog thread the heartbeat monitor found blocked."""

_RANK = re.compile(r"\[rank([0-9]{1,7})\]:")
_GROUP = re.compile(
    r"\[PG (?:ID )?(?P<number>\w{1,99})(?: PG GUID (?P<name>[^\s(\]]{1,99}))? ?(?:\((?P<what>[^)\]]{1,99})\))?"
    r" ?Rank [0-9]{1,7}\]"
)
_PLACE = re.compile(r"[\[ ]Rank ([0-9]{1,7})\]")
_CALL = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<sequence>[0-9]{1,18}), )?OpType=(?P<operation>\w{1,60})"
    r"(?:, TensorShape=\[(?P<shape>[0-9, ]{0,200})\])?"
    r"(?:, NumelIn=(?P<sent>[0-9]{1,18}), NumelOut=(?P<received>[0-9]{1,18}))?"
    r", Timeout\(ms\)=[0-9]{1,18}\) ran for [0-9]{1,18} milliseconds"
)
_STATUS = re.compile(
    r"last enqueued (?:NCCL )?work: (-?[0-9]{1,18}), last completed (?:NCCL )?work: (-?[0-9]{1,18})",
    re.IGNORECASE,
)

_STUCK = re.compile(
    r"watchdog got stuck(?: for (?P<seconds>[0-9]{1,9}) seconds)?|Heartbeat monitor timed out"
)


_NO_GROUP = ProcessGroup("", 0)


def recognises(head: bytes) -> bool:
    """Tell whether the beginning of a log has a line of the watchdog that says how far a rank came."""
    if not any(sign in head for sign in _SIGNS):
        return False
    text = head.decode("utf-8", "replace")
    return any(form.search(text) is not None for form in (_CALL, _STATUS)) or any(
        "ProcessGroupNCCL" in line and _STUCK.search(line) for line in text.splitlines()
    )


def read(file: TraceFile) -> Trace:
    """Return the open calls and the progress of the ranks that have a line; of others nothing is known."""
    statuses: dict[tuple[int, ProcessGroup], GroupProgress] = {}
    timeouts: list[tuple[Communication, bool]] = []
    stuck: dict[int, GroupProgress] = {}
    places_alone = False
    for number, raw in file.lines(LONGEST_LINE):
        if not any(sign in raw for sign in (*_SIGNS, b"WorkNCCL(")):
            continue
        line = raw.decode("utf-8", "replace")
        rank_of_job, in_group = _RANK.search(line), _GROUP.search(line)
        named = rank_of_job or _PLACE.search(line)
        work = _CALL.search(line)
        if named is None and work:
            timeouts.append((_timed_out(work, None, _NO_GROUP, number), True))
        if named is None or int(named[1]) >= MOST_RANKS:
            continue
        rank, group = int(named[1]), _NO_GROUP
        if in_group is not None:
            # The name is that which the group has on all ranks, where the line says it.
            number_, name, what = in_group.groups()
            group = ProcessGroup(name or number_, 0, (), plain(what or ""))
        place = f"{plain(file.place, 200)}:{number}"
        silence = _STUCK.search(line) if "ProcessGroupNCCL" in line else None
        status = _STATUS.search(line)
        if rank_of_job is None and (silence or status or work):
            places_alone = True
        if silence:
            length = f" for {silence['seconds']} seconds" if silence["seconds"] else ""
            stuck.setdefault(
                rank, GroupProgress(rank, group, place=place, trouble=STUCK + length)
            )
        if status:
            enqueued, completed = (max(int(count), 0) for count in status.groups())
            statuses[rank, group] = GroupProgress(rank, group, "", enqueued, completed, place)
        if work:
            timeouts.append((_timed_out(work, rank, group, number), in_group is not None))
    groups = {*(group for _, group in statuses), *(call.group for call, _ in timeouts)}
    groups.discard(_NO_GROUP)
    # A line that names no group opens none of its own beside the only one of the text.
    only = groups.pop() if len(groups) == 1 else _NO_GROUP
    calls = tuple(
        dict.fromkeys(
            call if has_group else replace(call, group=_group_of(call, statuses, only))
            for call, has_group in timeouts
        )
    )
    _made(calls, statuses, plain(file.place, 200))
    ranks = tuple(sorted({*stuck, *(rank for rank, _ in statuses)}))
    return Trace(
        communications=calls,
        ranks=ranks,
        backend="nccl" if ranks else "",
        groups=tuple(dict.fromkeys(group for _, group in statuses)),
        progress=(*stuck.values(), *statuses.values()),
        warnings=(SourceWarning("assumed", PLACES),) if places_alone else (),
    )


def _made(
    calls: Sequence[Communication],
    statuses: dict[tuple[int, ProcessGroup], GroupProgress],
    file: str,
) -> None:
    """Let ``statuses`` have come as far as the ``calls`` that timed out."""
    # No rank completes a call of a group before all made it: numbers further apart are of several groups.
    without = [call.sequence or 0 for call in calls if call.group == _NO_GROUP]
    several = max(without, default=0) - min(without, default=0) > MOST_APART
    for call in calls:
        if call.rank is None or call.sequence is None or (several and call.group == _NO_GROUP):
            continue
        rank, sequence = call.rank, call.sequence
        made = GroupProgress(
            rank, call.group, "", sequence, sequence - 1, f"{file}:{call.line}"
        )
        row = statuses.get((rank, call.group), made)
        statuses[rank, call.group] = replace(
            row,
            enqueued=max(row.enqueued or 0, sequence),
            completed=min(row.completed or 0, sequence - 1),
        )


def _timed_out(
    call: re.Match[str], rank: int | None, group: ProcessGroup, line: int
) -> Communication:
    elements = max(int(call["sent"] or 0), int(call["received"] or 0))
    if lengths := re.findall(r"[0-9]+", call["shape"] or ""):
        elements = prod(int(length[:18]) for length in lengths[:8])
    return Communication(
        rank,
        collective_of(call["operation"]),
        call["operation"],
        group,
        sequence=whole(call["sequence"] or ""),
        state="started",
        elements=elements or None,
        line=line,
    )


def _group_of(
    call: Communication,
    statuses: dict[tuple[int, ProcessGroup], GroupProgress],
    only: ProcessGroup,
) -> ProcessGroup:
    """The group of a call that does not name it: that in which it is the rank's first open call, else the only one."""
    own = [
        (group, row.completed) for (rank, group), row in statuses.items() if rank == call.rank
    ]
    first_open = [group for group, completed in own if completed == (call.sequence or 0) - 1]
    fit = first_open if len(first_open) == 1 else [group for group, _ in own]
    return fit[0] if len(fit) == 1 else only
