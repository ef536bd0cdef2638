"""Other tools' outputs become runs: from a file to an ImportedLog, the reader chosen by content."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from ccbench.documents import open_file
from ccbench.errors import UsageError
from ccbench.units import shown

if TYPE_CHECKING:
    from ccbench.readers.benchmarks.log import ImportedLog, LogReader

LARGEST_LOG_BYTES = 64 << 20
"""More than any of these tools prints, debug lines of a few hundred ranks included; more is not read."""

FORMS = (
    "nccl-tests and rccl-tests (text, JSON, CSV), OSU micro-benchmarks, Intel MPI Benchmarks, torch "
    "all_reduce_bench, PARAM comms, mscclpp-test, nccom-test, hccl_test, Gloo's benchmark, and Markdown "
    "tables with rates or times"
)


@cache
def readers() -> dict[str, LogReader]:
    """Readers by name, in the order they are asked: those with words of their own first, Markdown last.

    A page in Markdown may quote any of the others in full.
    """
    from ccbench.readers.benchmarks import host_benchmarks as host
    from ccbench.readers.benchmarks import markdown_tables, nccl_reports, nccl_tests
    from ccbench.readers.benchmarks import torch_benchmarks as torch
    from ccbench.readers.benchmarks import vendor_tests as vendor
    from ccbench.readers.benchmarks.log import LogReader

    listed = (
        LogReader("osu", host.is_osu, host.read_osu),
        LogReader("imb", host.is_imb, host.read_imb),
        LogReader("nccom", vendor.is_nccom, vendor.read_nccom),
        LogReader("hccl_test", vendor.is_hccl, vendor.read_hccl),
        LogReader("param", torch.is_param, torch.read_param),
        LogReader("gloo_benchmark", host.is_gloo, host.read_gloo),
        LogReader("mscclpp", vendor.is_mscclpp, vendor.read_mscclpp),
        LogReader("torch_bench", torch.is_all_reduce_bench, torch.read_all_reduce_bench),
        LogReader("nccl_reports", nccl_reports.recognises, nccl_reports.read),
        LogReader("nccl_tests", nccl_tests.recognises, nccl_tests.read),
        LogReader("markdown_tables", markdown_tables.recognises, markdown_tables.read),
    )
    return {reader.name: reader for reader in listed}


def read_log(path: str | PathLike[str]) -> ImportedLog:
    """Return what the file at ``path`` says, by the first reader that recognises its content, not its name.

    ``source`` of the answer is the path as given. Raises UsageError (exit code 2) when the file cannot be
    read, is larger than LARGEST_LOG_BYTES, or holds nothing that a reader knows.
    """
    place = str(path)
    try:
        with open_file(Path(path)) as file:
            content = file.read(LARGEST_LOG_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{place}: cannot be read ({reason}); name a file with a tool's output"
        ) from None
    if len(content) > LARGEST_LOG_BYTES:
        raise UsageError(
            f"{place}: larger than {LARGEST_LOG_BYTES >> 20} MiB; cut out the part with the tables"
        )
    # Terminals of Windows write UTF-16; stray bytes are kept visible rather than refused.
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    return replace(
        log_of_text(content.decode(encoding, "backslashreplace"), place), source=place
    )


def log_of_text(text: str, place: str) -> ImportedLog:
    """Return what ``text`` says. place: where it comes from, with which errors begin."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    for reader in readers().values():
        if reader.recognises(text):
            try:
                return reader.read(text)
            except UsageError as error:
                message = str(error)
                raise UsageError(
                    message if message.startswith(place) else f"{place}: {message}"
                ) from error
    beginning = shown(text.strip()) if text.strip() else "nothing"
    raise UsageError(
        f"{place}: no benchmark output that ccbench knows: {beginning}; known are {FORMS}"
    )
