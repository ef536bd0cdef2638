"""Other tools' outputs become runs: from a file to an ImportedLog, the reader chosen by content."""

from __future__ import annotations

import importlib
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from ccbench.errors import UsageError
from ccbench.units import shown

if TYPE_CHECKING:
    from ccbench.results.importers.log import ImportedLog

LARGEST_LOG_BYTES = 64 << 20
"""More than any of these tools prints, debug lines of a few hundred ranks included; more is not read."""

READERS: tuple[str, ...] = (
    "osu",
    "imb",
    "nccom",
    "hccl_test",
    "param",
    "gloo_benchmark",
    "mscclpp",
    "torch_bench",
    "nccl_reports",
    "nccl_tests",
    "markdown_tables",
)
"""Reader modules in the order they are asked: those with words of their own first, Markdown last, because a
page may quote any of the others in full."""

FORMS = (
    "nccl-tests and rccl-tests (text, JSON, CSV), OSU micro-benchmarks, Intel MPI Benchmarks, torch "
    "all_reduce_bench, PARAM comms, mscclpp-test, nccom-test, hccl_test, Gloo's benchmark, and Markdown "
    "tables with rates or times"
)


class Reader(Protocol):
    """Functions that each module of READERS offers."""

    def recognises(self, text: str) -> bool:
        """Return whether ``text`` is this reader's form; never raises."""

    def read(self, text: str) -> ImportedLog:
        """Return what ``text`` says; UsageError when nothing can be made of it."""


def reader(name: str) -> Reader:
    """The reader module called ``name``, one of READERS; imported when it is asked for."""
    return cast(Reader, importlib.import_module(f"ccbench.results.importers.{name}"))


def read_log(path: str | PathLike[str]) -> ImportedLog:
    """Return what the file at ``path`` says, by the first reader that recognises its content, not its name.

    ``source`` of the answer is the path as given. Raises UsageError (exit code 2) when the file cannot be
    read, is larger than LARGEST_LOG_BYTES, or holds nothing that a reader knows.
    """
    place = str(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_LOG_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{place}: cannot be read ({reason}); name a file with a tool's output") from None
    if len(content) > LARGEST_LOG_BYTES:
        raise UsageError(
            f"{place}: larger than {LARGEST_LOG_BYTES >> 20} MiB; cut out the part with the tables"
        )
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    return replace(log_of_text(content.decode(encoding, "backslashreplace"), place), source=place)


def log_of_text(text: str, place: str) -> ImportedLog:
    """Return what ``text`` says. place: where it comes from, with which errors begin."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    for name in READERS:
        candidate = reader(name)
        if not candidate.recognises(text):
            continue
        try:
            return candidate.read(text)
        except UsageError as error:
            raise UsageError(str(error) if str(error).startswith(place) else f"{place}: {error}") from error
    seen = shown(text.strip()) if text.strip() else "nothing"
    raise UsageError(f"{place}: no benchmark output that ccbench knows: {seen}; known are {FORMS}")
