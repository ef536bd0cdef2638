"""Shared by the commands: where text goes, and how their options are read."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from ccbench.errors import RunFolderError, UsageError
from ccbench.exit_codes import FINE, NO_VERDICT
from ccbench.units import harmless, parse_duration, parse_fraction, plural

if TYPE_CHECKING:
    from ccbench.report.present import Table
    from ccbench.results import Run

every_case = click.option("--all", "every", is_flag=True, help="Show every case in a row.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


def say(text: str) -> None:
    """Text for a person on stderr; lost without complaint when nobody can read it."""
    try:
        click.echo(harmless(text), err=True)
    except (OSError, ValueError):
        return


class PacedLines:
    """Progress on stderr, a line every ``SECONDS`` at most; on a terminal the newest one replaces the last."""

    SECONDS = 3.0
    TERMINAL_SECONDS = 0.2

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown_at = time.monotonic()
        self._width = 0

    def show(self, text: str) -> None:
        """Show ``text`` where its time has come."""
        now = time.monotonic()
        pause = self.TERMINAL_SECONDS if self._live else self.SECONDS
        if now - self._shown_at < pause:
            return
        self._shown_at = now
        if self._live:
            click.echo(f"\r{text.ljust(self._width)}", err=True, nl=False)
            self._width = len(text)
        else:
            say(text)

    def end(self) -> None:
        """Take the line off a terminal."""
        if self._width:
            click.echo(f"\r{' ' * self._width}\r", err=True, nl=False)


verbosely = click.option(
    "-v", "--verbose", is_flag=True, help="Show the evidence of findings, and all of them."
)


def exit_code_of(runs: Sequence[Run]) -> int:
    """Exit code of a command that shows ``runs``: of the gravest case, or of bits that do not stay; of no case.

    An imported file counts as its program ended. A case that was skipped was not run.
    """
    from ccbench.analysis.bits import bits_are_unstable
    from ccbench.cases.measurement import EXIT_CODES, Status

    points = [point for run in runs for point in run.points]
    statuses = {point.status for point in points} - {Status.SKIPPED}
    ends = {file.get("outcome") for run in runs for file in run.manifest.mappings("imported")}
    statuses |= {
        status
        for outcome, status in (
            ("hung", Status.TIMED_OUT),
            ("crashed", Status.FAILED),
            ("cut", Status.FAILED),
        )
        if outcome in ends
    }
    if any(map(bits_are_unstable, runs)):
        statuses.add(Status.WRONG)
    codes = (EXIT_CODES.get(status) for status in statuses)
    return min(filter(None, codes), default=FINE if points else NO_VERDICT)


MOST_PROBLEMS = 5


def say_problems(problems: Sequence[str]) -> None:
    """Name the files of runs that could not be read, the first of very many."""
    more = [f"{len(problems) - MOST_PROBLEMS} more files could not be read"]
    for text in [*problems[:MOST_PROBLEMS], *more * (len(problems) > MOST_PROBLEMS)]:
        say(f"note: {text}")


PICTURES = (".png", ".svg", ".pdf")


def say_files(files: Sequence[Path]) -> None:
    """Name the files of a report on stdout, the page as an address that terminals open."""
    for file in files:
        if file.suffix == ".html":
            click.echo(f"page: {file.resolve().as_uri()}")
    others = [file for file in files if file.suffix != ".html"]
    named = [file.name for file in others if file.suffix not in PICTURES]
    if pictures := len(others) - len(named):
        named.append(others[0].name if len(others) == 1 else f"{pictures} pictures")
    if named:
        click.echo(f"wrote {', '.join(named)} in {others[0].parent}")


def print_json(value: object) -> None:
    """``value`` as one JSON text on stdout."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def completing(
    names: Callable[[click.Context], Iterable[str]], else_type: str = ""
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Completions of a parameter: those of ``names`` that begin so; where none does, click's of a type."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        completions = [
            CompletionItem(name) for name in names(context) if name.startswith(incomplete)
        ]
        return completions or (
            [CompletionItem(incomplete, type=else_type)] if else_type else []
        )

    return complete


def typed_options(left_out: Container[str]) -> list[str]:
    """Options of the running command as somebody would type them again, without those of some parameters."""
    from ccbench.machine.files import command_shown

    context, words = click.get_current_context(), list[str]()
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in left_out or source is not ParameterSource.COMMANDLINE:
            continue
        # A callback that uses the value up leaves what was typed in meta.
        value = context.meta.get(f"ccbench.{name}", context.params.get(name))
        option = max(parameter.opts, key=len)
        if isinstance(parameter, click.Option) and parameter.is_flag:
            words.append(option)
            continue
        for text in value if isinstance(value, tuple) else (value,):
            # A command may hold a secret.
            words += [option, command_shown(text) if name == "launch" else str(text)]
    return words


def screen_width() -> int:
    """COLUMNS where that is set, else the terminal's columns, else 100."""
    return shutil.get_terminal_size((100, 24)).columns


def folds_sentences() -> bool:
    """True for a terminal, or where COLUMNS asks for a width."""
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def show_lines(lines: Iterable[str], hang: int = 2) -> None:
    """Print ``lines``; where sentences fold, long ones to the screen, ``hang`` columns behind their indentation."""
    width = screen_width()
    folds = folds_sentences()
    for line in lines:
        parts = [line]
        if folds and len(line) > width:
            indent = min(len(line) - len(line.lstrip()) + hang, width // 2)
            # Commands, paths and addresses stay whole, to be copied.
            parts = textwrap.wrap(
                line,
                width,
                subsequent_indent=" " * indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        click.echo("\n".join(parts))


def table_lines(table: Table) -> list[str]:
    """Lines of a table; where sentences fold, without the columns for which the screen has no room, named below."""
    from ccbench.report.present import aligned, fitted_lines

    return fitted_lines(table, screen_width()) if folds_sentences() else aligned(table)


def open_closed_streams() -> None:
    """Join standard streams that were closed (``>&-``) before ccbench started to nothing."""
    # Else the next file that is opened would get the number 1 or 2, and a library's message would land in it.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


COLOURS = {
    **dict.fromkeys(("NORMAL", "HEALTHY"), 32),
    **dict.fromkeys(("SLOW", "WRONG", "UNHEALTHY", "REGRESSION", "PROBLEM", "Problem"), 31),
    **dict.fromkeys(("FAST", "LOW", "CANNOT SAY", "NO VERDICT", "Doubt"), 33),
}
"""Words of verdicts and their colours (ECMA-48): green, red, yellow."""

_COLOURED = re.compile(
    rf"\b(?:{'|'.join(COLOURS)})\b(?=[: ]|$)"
    r"|(?<!\S)~\d[\d.]*(?: (?:[num]?s|GB/s))?(?: +\(\d[^)]*\))?",
    re.MULTILINE,
)
"""Those words, and doubtful figures with what was expected of them, which are dim."""


def wants_colours(stream: TextIO) -> bool:
    """True for a terminal, unless NO_COLOR is set; FORCE_COLOR wants them anywhere (no-color.org, force-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def with_colours(text: str) -> str:
    """``text`` with the words of verdicts in their colours, and what is in doubt dim."""
    styles = {word: f"1;{colour}" for word, colour in COLOURS.items()}
    return _COLOURED.sub(lambda it: f"\x1b[{styles.get(it[0], '2')}m{it[0]}\x1b[0m", text)


class WatchedStream:
    """A text stream that remembers its last failure to write to it; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._coloured = wants_colours(stream)
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write printable text: names of files and what they hold never steer the terminal."""
        # Only the words of verdicts are coloured, after the text was made harmless.
        text = harmless(text)
        try:
            return self._stream.write(with_colours(text) if self._coloured else text)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        """Flush the stream."""
        try:
            self._stream.flush()
        except OSError as error:
            self.failure = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def watched_stdout() -> Iterator[WatchedStream]:
    """Replace stdout, so that its failures can be told from those of files."""
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name == "ascii":
        # click would write UTF-8 past this stream, unwatched.
        stream.reconfigure(encoding="utf-8")
    watched = WatchedStream(stream)
    sys.stdout = cast("TextIO", watched)
    try:
        yield watched
    finally:
        sys.stdout = stream


def drop(stream: TextIO) -> None:
    """Let everything printed to ``stream`` from now on, and what Python flushes at its end, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def drop_if_broken(stream: TextIO) -> None:
    """Drop a stream that cannot be flushed."""
    # Python's own last flush would make the exit code 120.
    try:
        stream.flush()
    except OSError:
        drop(stream)


def check_writable(path: Path, option: str) -> None:
    """Raise UsageError where no file can be written at ``path``; leaves nothing behind."""
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if path.exists():
            with path.open("ab"):
                return
        with tempfile.TemporaryFile(dir=path.parent):
            return
    except OSError as error:
        reason = f"no folder {path.parent}" if not path.parent.is_dir() else error.strerror
        raise UsageError(
            f"{option} {path}: cannot be written ({reason}); name another place"
        ) from None


def duration(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> float | None:
    """Callback of an option such as ``10m``: seconds, or a usage error that says what to write."""
    return _read(parse_duration, parameter, text)


def fraction(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> float | None:
    """Callback of an option such as ``5%``: a fraction, or a usage error that says what to write."""
    return _read(parse_fraction, parameter, text)


def numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Callback of an option such as ``8:1GiB:2`` or ``1,64KiB``."""
    from ccbench.suite.readers import parse_sizes

    try:
        return tuple(size for part in text.split(",") for size in parse_sizes(part))
    except ValueError as error:
        raise click.BadParameter(f"{error}; write 8:1GiB:2 or 8,64KiB") from None


def _read(
    parse: Callable[[str], float], parameter: click.Parameter, text: str | None
) -> float | None:
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{parameter.opts[0]}: {error}") from None


def drawn_as_far_as_possible(
    draw: Callable[[], tuple[Path, ...]], of: Path | None = None
) -> tuple[Path, ...]:
    """The files of a report; what could not be drawn is a note.

    of: a run that has just ended, whose exit code and verdict a full disk does not change either.
    """
    # The table is still to be printed.
    from ccbench.report.writing import ReportIncomplete

    try:
        return draw()
    except ReportIncomplete as error:
        say(f"note: {error}")
        return tuple(error.files)
    except RunFolderError as error:
        if of is None:
            raise
        reason = str(error).partition(";")[0]
        again = shlex.join(["ccbench", "report", str(of), "-o", "PLACE"])
        say(f"note: no report was written: {reason}; write it elsewhere with: {again}")
        return ()


_STDIN_FOLDER = "ccbench-stdin-"


@contextmanager
def with_stdin(files: Sequence[Path]) -> Iterator[tuple[Path, ...]]:
    """The files, with stdin kept in one that is called so where ``-`` is among them."""
    if Path("-") not in files:
        yield tuple(files)
        return
    with tempfile.TemporaryDirectory(prefix=_STDIN_FOLDER) as folder:
        kept = Path(folder) / "stdin"
        kept.write_bytes(sys.stdin.buffer.read())
        yield tuple(kept if path == Path("-") else path for path in files)


def place_of(path: Path) -> str:
    """Name of a file in sentences: ``stdin`` for what ``with_stdin`` kept."""
    return path.name if path.parent.name.startswith(_STDIN_FOLDER) else str(path)


def files_meant(paths: Iterable[Path]) -> list[Path]:
    """Files that arguments stand for: those of folders, of patterns that the shell left alone, or themselves.

    A folder with traces in it stays whole, since ranks of a job are read together. In other folders run
    folders are passed over with a note, and files that are no tool's output without one.
    """
    from ccbench.readers.lines import may_be_output
    from ccbench.readers.traces.reading import is_trace
    from ccbench.results.files import MANIFEST_NAME, has_cases

    files: list[Path] = []
    runs: set[Path] = set()
    for path in paths:
        members = [path]
        if path.is_dir():
            within = {
                file.parent for file in path.rglob(MANIFEST_NAME) if has_cases(file.parent)
            }
            inside = [
                file
                for file in sorted(path.rglob("*"))
                if file.name[0] != "." and file.is_file() and not within & {*file.parents}
            ]
            runs |= within
            if not any(is_trace(file, logs=False) for file in inside) and (inside or within):
                members = [file for file in inside if may_be_output(file)]
        elif has_magic(str(path)) and not path.exists():
            members = sorted(map(Path, glob(str(path), recursive=True))) or [path]
        files += members
    if runs:
        use = "use 'ccbench report' or 'ccbench compare'"
        say(f"note: {plural(len(runs), 'run folder')} passed over: {use}")
    return files


def latest_run() -> Path:
    """The newest run of results/, which takes the place of an argument; says which it is."""
    from ccbench.results.loading import named_run

    path = named_run("latest")
    say(f"run: {path}")
    return path


def file_for(output: Path | None, name: str) -> Path | None:
    """The file that ``-o`` means: itself, or ``name`` in it when it is a folder. Raises UsageError."""
    file = output / name if output is not None and output.is_dir() else output
    if file is not None:
        check_writable(file, "-o")
    return file


def leave(file: Path | None, result: object) -> None:
    """Text as it is, anything else as JSON. Raises UsageError when the file cannot be written."""
    if file is None:
        if isinstance(result, str):
            click.echo(result, nl=False)
        else:
            print_json(result)
        return
    from ccbench.results.files import write_atomically

    text = (
        result
        if isinstance(result, str)
        else json.dumps(result, indent=2, allow_nan=False) + "\n"
    )
    try:
        write_atomically(file, text.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(
            f"-o {file}: cannot be written ({error.strerror}); name another place"
        ) from None
    say(f"wrote {file}")
