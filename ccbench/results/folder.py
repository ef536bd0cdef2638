"""Writing a run: a folder that one run owns, to whose log finished cases are added whole.

Closing it writes all cases as one table and takes the log away. A run that is killed leaves its log: readers read it
as well, and a resumed run puts it into the table first. What was damaged is named then, and kept beside.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from datetime import datetime, timezone
from enum import Enum
from itertools import count
from pathlib import Path
from typing import Any

from ccbench.cases.measurement import MORE_ROUNDS, NO_TEAM, Measurement, Status
from ccbench.documents import open_file
from ccbench.errors import RunCutShort, RunFolderError
from ccbench.model import Prediction
from ccbench.results.files import (
    EARLIER,
    LOG_NAME,
    MANIFEST_NAME,
    TABLE_NAME,
    as_line,
    as_parquet,
    cases_files,
    has_cases,
    one_line,
    sensible,
    stored,
    write_atomically,
)
from ccbench.results.schema import (
    SCHEMA_VERSION,
    Origin,
    Row,
    arrow_schema,
    measurement_of,
    row_of,
)
from ccbench.units import plural

LOCK_NAME = "lock"

PROBE_NAME = ".probe.0.tmp"

PROBE_BYTES = 64 * 1024
"""More than a case's line usually takes, so that a full disk shows before the first case is measured."""

LEFTOVERS = ".*.[0-9]*.tmp"
"""Pattern of the probe and of the temporary names of write_atomically."""

DIGEST_KEY = "digest"
"""Entry of run.json: SHA-256 of the document without it."""


FINISHED = {"ok": MORE_ROUNDS, "wrong": MORE_ROUNDS, "unsupported": NO_TEAM}
"""Statuses that another attempt would not change, each with the stop reason after which it might: ranks that
refused to start may do so once the cause is mended. The others are tried again on resume."""


class RunFolder:
    """A run folder open for writing, locked against every other writer until closed.

    The lock is the kernel's (flock), so a run that is killed leaves no stale lock behind.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], is_new: bool) -> None:
        """Take the folder; ``create`` and ``resume`` know what of."""
        import fcntl

        self.path, self.manifest = path, manifest
        # Loads pyarrow now: a missing or broken one must show before the first case is measured.
        arrow_schema()
        with cured(path):
            if is_new:
                path.mkdir(parents=True, exist_ok=True)
                _refuse_used(path)
            self._lock: int | None = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_new:
                    # Another run may have filled the folder between the first look and the lock.
                    _refuse_used(path)
                # What killed runs left half written; none of it is in use, since this run holds the lock.
                for leftover in path.glob(LEFTOVERS):
                    leftover.unlink()
                # Really write: permissions and quotas tell too little, and now nothing has been measured yet.
                write_atomically(path / PROBE_NAME, b"\0" * PROBE_BYTES)
                (path / PROBE_NAME).unlink()
                self.describe()
                self.problems = self._gathered() if has_cases(path) else ()
                write_atomically(path / LOG_NAME, b"")
            except BaseException:
                os.close(self._lock)
                raise

    @classmethod
    def create(cls, path: Path | str, manifest: Mapping[str, Any]) -> RunFolder:
        """Make ``path`` a run folder and write its manifest to run.json.

        ``schema_version`` and ``created_at`` are added to the manifest. Raises RunFolderError when the
        folder holds anything already, belongs to another run, or cannot be written.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        stamped = {"schema_version": SCHEMA_VERSION, "created_at": now, **manifest}
        return cls(Path(path), stamped, is_new=True)

    @classmethod
    def resume(cls, path: Path | str) -> RunFolder:
        """Open a run folder left by an earlier run, to write the cases it still lacks.

        Raises RunFolderError when it is no run folder, of another schema, in use, or cannot be written.
        """
        path = Path(path)
        manifest, reason = read_manifest(path / MANIFEST_NAME)
        if reason:
            edited = (
                f", or take the key {DIGEST_KEY!r} out of it to go on with what it says now"
            )
            raise RunFolderError(
                f"{path / MANIFEST_NAME}: {reason}, so {path} is no run folder to go on with; start a "
                f"new run{edited * (reason == EDITED)}"
            )
        # Cases of an earlier version stay as they are; those that come have this version.
        return cls(path, manifest, is_new=False)

    def describe(self, **entries: Any) -> None:
        """Add ``entries`` to run.json, for what is known only after the folder was made."""
        file = self.path / MANIFEST_NAME
        stated = {**self.manifest, **entries}
        try:
            plain = json.loads(json.dumps(stated, default=_simpler, allow_nan=False))
            self.manifest = {**plain, DIGEST_KEY: digest_of(plain)}
            text = json.dumps(self.manifest, indent=2) + "\n"
        except (TypeError, ValueError) as error:
            raise RunFolderError(
                f"{file}: the manifest is not JSON ({error}); give text, numbers, lists, mappings"
            ) from None
        with cured(file):
            write_atomically(file, text.encode())

    def write(
        self,
        measurement: Measurement,
        prediction: Prediction | None,
        confidence: float = 0.95,
        origin: Origin | None = None,
    ) -> None:
        """Store one case, whole or not at all.

        A case that still lacks rounds is not synced to the disk: it survives this process, whatever kills
        it, and the next round writes it again; only a power cut may cost it.

        confidence: of the interval of the median. origin: of a case that another tool measured; it is not
        synced either, since it can be imported again. Raises RunFolderError when the disk refuses (of a run with
        cases that were measured before, which stay readable, RunCutShort).
        """
        if self._lock is None:
            raise RunFolderError(
                f"{self.path}: this run folder was closed; open it again with resume"
            )
        line = as_line(row_of(measurement, prediction, confidence, origin))
        log = self.path / LOG_NAME
        try:
            with cured(log):
                end = log.stat().st_size
                try:
                    with open(log, "ab") as file:
                        file.write(line)
                        file.flush()
                        if origin is None and measurement.stop_reason != MORE_ROUNDS:
                            os.fsync(file.fileno())
                except (
                    OSError
                ):  # a signal leaves the line: it is written, and may be all there is
                    with suppress(OSError):
                        os.truncate(log, end)
                    raise
        except RunFolderError as error:
            # Of an import nothing is kept that is not whole.
            if origin or not (kept := stored(self.path)[0].num_rows):
                raise
            raise RunCutShort(
                f"{error}; {plural(kept, 'case')} kept in {self.path}; "
                f"then go on with --resume {self.path}"
            ) from error

    def _gathered(self) -> tuple[str, ...]:
        """Put all cases into the table; return what is wrong with files, which are kept beside.

        It is noted before a file changes: whoever is killed, or may not go on after all, leaves it told.
        """
        table, problems = stored(self.path)
        damaged = [
            file
            for file in cases_files(self.path)
            if file.is_file() and any(line.startswith(f"{file}: ") for line in problems)
        ]
        for file in damaged:
            # The same again has the same name; what another resume found stays.
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:8]
            (self.path / f"{file.name}.{digest}.damaged").write_bytes(content)
        if problems:
            self.describe(notes=[*dict.fromkeys([*self.manifest.get("notes", ()), *problems])])
        if table.num_rows or problems:
            write_atomically(self.path / TABLE_NAME, as_parquet(table))
        for file in damaged:
            if file.parent.name == EARLIER:
                file.unlink()
        return tuple(problems)

    def finished(self) -> dict[str, Status]:
        """Cases that need no other attempt, by id; those that cannot be read count as not written."""
        return {
            row["case_id"]: Status(row["status"])
            for row in self._rows("case_id", "status", "stop_reason")
            if FINISHED.get(row["status"], row["stop_reason"]) != row["stop_reason"]
        }

    def unfinished(self) -> dict[str, Measurement]:
        """Measurements that still lack rounds, by case id: what a resumed run adds to."""
        rows = (row for row in self._rows() if row["stop_reason"] == MORE_ROUNDS)
        return {row["case_id"]: measurement_of(row) for row in rows}

    def _rows(self, *columns: str) -> list[Row]:
        table, _ = sensible(self.path, stored(self.path)[0])
        rows: list[Row] = table.select(columns or table.column_names).to_pylist()
        return rows

    def remove_if_empty(self) -> None:
        """Take the folder away when it never got a case: it would only be in the way of the next run.

        Whatever else somebody has put there meanwhile stays.
        """
        with suppress(OSError):
            if not (self.path / LOG_NAME).stat().st_size:
                for name in (LOG_NAME, MANIFEST_NAME, LOCK_NAME):
                    (self.path / name).unlink(missing_ok=True)
                self.path.rmdir()

    def close(self) -> None:
        """Write all cases as one table and release the lock; safe to call twice.

        Where the disk refuses, or ``problems`` says of damage, the log stays: readers read it as well, and a
        resumed run tries again.
        """
        if self._lock is None:
            return
        log, self.problems = self.path / LOG_NAME, ()
        with suppress(OSError, MemoryError):
            if log.stat().st_size:
                table, problems = stored(self.path)
                self.problems = tuple(problems)
                if not problems:
                    write_atomically(self.path / TABLE_NAME, as_parquet(table))
            if not self.problems:
                log.unlink()
        os.close(self._lock)
        self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def new_folder(root: Path, suite: str) -> Path:
    """Make and return ``<root>/0007-<suite>``, with the number after the highest there.

    Raises RunFolderError when ``root`` cannot be written.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", suite).strip("-.")[:60]
    with cured(root):
        root.mkdir(parents=True, exist_ok=True)
        taken = [int(path.name[:4]) for path in root.glob("[0-9][0-9][0-9][0-9]-*")]
        for number in count(max(taken, default=0) + 1):
            # The number is claimed first: runs of two suites that start together get two.
            claim = root / f".{number:04}"
            with suppress(FileExistsError):
                claim.mkdir()
                if not any(root.glob(f"{number:04}-*")):
                    return claim.rename(root / f"{number:04}-{name}")
                claim.rmdir()
    raise AssertionError("numbers do not end")


def digest_of(manifest: Mapping[str, Any]) -> str:
    """Return the digest of the contents of run.json, however it is laid out."""
    stated = {key: value for key, value in manifest.items() if key != DIGEST_KEY}
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()


EDITED = "was changed after it was written"


def read_manifest(file: Path) -> tuple[dict[str, Any], str]:
    """The contents of run.json, {} where it cannot be read, and what is wrong with it, or ''."""
    try:
        with open_file(file) as stream:
            manifest = json.load(stream)
        if not isinstance(manifest, dict):
            return {}, f"holds {type(manifest).__name__}, expected a mapping"
        version = manifest.get("schema_version", SCHEMA_VERSION)
        if version != SCHEMA_VERSION:
            return manifest, f"schema version is {str(version)[:40]}, expected {SCHEMA_VERSION}"
        edited = manifest.get(DIGEST_KEY, "") not in ("", digest_of(manifest))
        return manifest, EDITED * edited
    except FileNotFoundError:
        return {}, "not found"
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"cannot be read ({one_line(error)})"


def _simpler(value: Any) -> object:
    """What JSON has a form for in the place of ``value``. Raises TypeError."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value.value if isinstance(value, Enum) else os.fspath(value)


def _refuse_used(path: Path) -> None:
    """Refuse what holds more than a run leaves that was killed before it had a manifest.

    Nothing was measured then, and nothing can be resumed: the same command must work when it is given again.
    """
    with cured(path):
        names = {file.name: file for file in path.iterdir()}
        left = {LOCK_NAME, *(file.name for file in path.glob(LEFTOVERS))}
        used = [name for name, file in names.items() if name not in left or not file.is_file()]
    if used:
        go_on = f", or go on with that run with --resume {path}"
        raise RunFolderError(
            f"{path}: the folder is not empty (it holds {min(used)!r}); give another name with -o"
            f"{go_on * (MANIFEST_NAME in used)}"
        )


_CURES = {
    errno.EWOULDBLOCK: "another run is writing to this folder; wait for it or give another name with -o",
    errno.ENOLCK: "this filesystem cannot lock files; put the run elsewhere with -o",
    errno.ENOSPC: "the disk is full; free some space, or put the run on another disk with -o",
    errno.EDQUOT: "the disk quota is used up; free some space, or put the run elsewhere with -o",
    errno.EROFS: "the filesystem is read-only; put the run on a writable one with -o",
    errno.EACCES: "no permission to write there; put the run elsewhere with -o",
    errno.EPERM: "no permission to write there; put the run elsewhere with -o",
    errno.ENOTDIR: "a part of the path is a file, not a folder; give another name with -o",
    errno.EEXIST: "this is a file, not a folder; give another name with -o",
    errno.EBUSY: "this is a disk, not a folder of one; name a folder in it with -o",
    errno.ENOENT: "the folder is gone; start a new run",
    errno.ENAMETOOLONG: "the name is too long; give a shorter one with -o",
    errno.ESTALE: "the network filesystem lost the folder; put the run on a local disk with -o",
}


@contextmanager
def cured(path: Path) -> Iterator[None]:
    """Turn an OSError into a RunFolderError that names ``path`` and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        cure = _CURES.get(error.errno or 0, "check the disk, or put the run elsewhere with -o")
        raise RunFolderError(f"{path}: cannot be written ({reason}): {cure}") from error
