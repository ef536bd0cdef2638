"""Stacks that 'py-spy dump' prints, one process after another."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ccbench.readers.lines import plain_lines
from ccbench.readers.statements import Statement

FORM = "py-spy"

OWNED = re.compile(r"^(?:Process \d+: |Python v\d|Thread (?:0x)?\w+ \(|    \S.* \(\S+:\d+\)$)")

_PROCESS = re.compile(r"^Process (?P<process>\d{1,10}): (?P<command>.{1,2000})")
_RANK = re.compile(
    r"(?<![A-Za-z_-])(?:--)?(?:global[-_]?)?rank[= ](?P<rank>\d{1,7})\b", re.IGNORECASE
)
_LOCAL_RANK = re.compile(r"\blocal[-_]?rank[= ](?P<rank>\d{1,7})\b", re.IGNORECASE)
_LAUNCHER = re.compile(
    r"^(?:\S*python[\d.]*\s+(?:-\w+\s+)*)?(?:\S*/)?(?:torchrun|torch\.distributed\.(?:run|launch)|mpirun|mpiexec\S*"
    r"|orterun|prterun|srun|horovodrun|deepspeed(?:\.launcher\.\S+)?|accelerate(?:-launch|\.commands\.\S+)?)(?:\s|$)"
)
"""Commands that start ranks and wait until they end, as a program, a script or a module of Python."""

_LOADER = "_worker_loop ("
"""Frame of a process that reads data for a rank: PyTorch's DataLoader."""
_THREAD = re.compile(r'^Thread \S{1,40} \((?P<state>[\w+]{1,20})\): "(?P<name>[^"]{1,60})"')
_FRAME = re.compile(r"^    (?P<frame>\S.{0,120} \(\S{1,200}:\d{1,7}\))$")

WAITING = re.compile(
    r"\b(?:all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|all_?to_?all|synchronize|wait|send|recv|item)\w* \("
)
"""Frames in which a rank waits for others; what stands above them is the library's."""


def read(text: str) -> Iterator[Statement]:
    """Yield a ``stack`` of the main thread of every process: the frames nearest to the top, innermost first.

    ``rank`` and ``local_rank`` are those of the command, '' where it has none. Of a process that is no rank, a
    launcher or a loader of data, it is a ``helper_stack``.
    """
    command, frames, first, main = dict[str, str](), list[str](), 0, False
    for number, line in enumerate([*plain_lines(text), "Process 0: end"], start=1):
        header, thread = _PROCESS.match(line), _THREAD.match(line)
        if (header or thread) and main and frames:
            loads = any(frame.startswith(_LOADER) for frame in frames)
            values = {**command, "frames": " < ".join(frames[:4])}
            yield Statement(
                "helper_stack" if loads or command.get("launcher") else "stack",
                first,
                frames[0],
                values,
                command.get("rank") or command.get("process", ""),
            )
        if header:
            named, local = (form.search(header["command"]) for form in (_RANK, _LOCAL_RANK))
            launcher = _LAUNCHER.search(header["command"])
            command, main = (
                {
                    "process": header["process"],
                    "rank": named["rank"] if named else "",
                    "local_rank": local["rank"] if local else "",
                    "launcher": launcher[0].strip() if launcher else "",
                },
                False,
            )
        elif thread:
            main, frames, first = thread["name"] == "MainThread", [], number
        elif main and (match := _FRAME.match(line)):
            frames.append(match["frame"])
