"""Trace files as streams of bytes: decompressed, out of archives, up to where they are damaged."""

from __future__ import annotations

import codecs
import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccbench.documents import open_file
from ccbench.errors import UsageError
from ccbench.findings import SourceWarning
from ccbench.units import plain

HEAD_BYTES = 1 << 16
"""What a file is recognised by."""


LARGEST_HEADER_BYTES, MOST_MEMBERS = 16 << 20, 100_000
"""Of an archive; one with more is damaged or means harm."""


_DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)


_GZIP, _TAR = b"\x1f\x8b", b"ustar"


@dataclass(frozen=True)
class TraceFile:
    """One file, a member of an archive too. place: as errors show it. stream: its bytes, decompressed, once.

    head: the first HEAD_BYTES of the stream, without a byte order mark that it may begin with.
    """

    place: str
    head: bytes
    stream: io.BufferedIOBase

    def lines(self, longest: int) -> Iterator[tuple[int, bytes]]:
        """Give the lines with their numbers, from 1 on; one of more than ``longest`` bytes in parts."""
        return enumerate(iter(lambda: self.stream.readline(longest), b""), start=1)


class _Stream(io.RawIOBase):
    """A stream that ends, with a warning, where its source is damaged.

    limit: bytes that may be read, None for any number.
    """

    def __init__(
        self, place: str, source: io.BufferedIOBase, warnings: list[SourceWarning]
    ) -> None:
        self._place, self._source, self._warnings = place, source, warnings
        self.limit: int | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``; what lies before damage counts."""
        filled = 0
        while filled < len(buffer):
            try:
                chunk = self._source.read1(len(buffer) - filled)
            except _DAMAGE:
                # The bytes before it are whole and worth reading; after it there is nothing to go on with.
                self._source, chunk = io.BytesIO(), b""
                text = f"{plain(self._place, 200)}: damaged or cut off"
                self._warnings.append(SourceWarning("truncated", text))
            if not chunk:
                break
            buffer[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        if self.limit is not None:
            self.limit -= filled
            if self.limit < 0:
                raise tarfile.ReadError("a header without end")
        return filled


def trace_files(path: str, warnings: list[SourceWarning]) -> Iterator[TraceFile]:
    """Give the files at ``path`` one after the other; each must be read before the next is asked for.

    Members of archives that are not regular files are passed over. Raises UsageError where it cannot be read.
    """
    try:
        if Path(path).is_dir():
            inside = sorted(
                member
                for member in Path(path).rglob("*")
                if member.is_file() and member.name[0] != "."
            )
            for member in inside:
                yield from trace_files(str(member), warnings)
            return
        file = open_file(Path(path))
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{plain(path, 200)}: cannot be read ({reason}); name a trace or a folder"
        ) from None
    with file:
        yield from _opened(path, file, warnings)


def _opened(
    place: str, source: io.BufferedIOBase, warnings: list[SourceWarning], archive: bool = True
) -> Iterator[TraceFile]:
    """Give the file in ``source``, or, where it is an ``archive``, its members."""
    raw = _Stream(place, source, warnings)
    stream = io.BufferedReader(raw, HEAD_BYTES)
    if stream.peek(HEAD_BYTES).startswith(_GZIP):
        raw = _Stream(place, gzip.GzipFile(fileobj=stream), warnings)
        stream = io.BufferedReader(raw, HEAD_BYTES)
    head = stream.peek(HEAD_BYTES)
    if not archive or head[257:262] != _TAR:
        yield TraceFile(place, head.removeprefix(codecs.BOM_UTF8), stream)
        return
    try:
        with tarfile.open(fileobj=stream, mode="r|") as members:
            for _ in range(MOST_MEMBERS):
                raw.limit = LARGEST_HEADER_BYTES
                member = members.next()
                raw.limit = None
                if member is None:
                    return
                part = (
                    members.extractfile(member)
                    if member.isreg() and not member.issparse()
                    else None
                )
                if isinstance(part, io.BufferedReader):
                    yield from _opened(f"{place}: {member.name}", part, warnings, archive=False)
                    while part.read(HEAD_BYTES):  # what its reader left
                        pass
    except _DAMAGE:
        warnings.append(
            SourceWarning("truncated", f"{plain(place, 200)}: the archive ends in the middle")
        )
