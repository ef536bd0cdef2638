"""The command line: commands parse, call and print; every mistake ends in one line and an exit code."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from ccbench.cli.checking import check
from ccbench.cli.compare import compare
from ccbench.cli.doctor import doctor
from ccbench.cli.listing import list_names
from ccbench.cli.output import (
    WatchedStream,
    drop,
    drop_if_broken,
    open_closed_streams,
    say,
    watched_stdout,
)
from ccbench.cli.predict import plan, predict
from ccbench.cli.replay import replay
from ccbench.cli.report import report
from ccbench.cli.run import run
from ccbench.cli.schedule import schedule
from ccbench.cli.topo import topo
from ccbench.cli.tune import tune
from ccbench.errors import CcbenchError
from ccbench.exit_codes import BUG, FINE, INTERRUPTED, READER_GONE, USAGE
from ccbench.version import __version__

NO_ROOM = ("failed to map segment", "can't start new thread", "Cannot allocate memory")
COMPLETION_VARIABLE = "_CCBENCH_COMPLETE"


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="ccbench")
@click.pass_context
def commands(context: click.Context) -> None:
    """Measure this machine's collectives: how fast, is that what it should give, what to run instead.

    Start with: ccbench run quick
    """
    # click's own no_args_is_help is a mistake with exit code 2 since 8.2, and none before.
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (
    run,
    report,
    compare,
    check,
    predict,
    topo,
    schedule,
    tune,
    plan,
    replay,
    doctor,
    list_names,
):
    commands.add_command(_command)


def main(arguments: Sequence[str] | None = None, command: click.Command = commands) -> NoReturn:
    """Run ``command`` and leave with its exit code; ``arguments`` are the process's own unless given."""
    # The interpreter would end with a look at all that a run has loaded, for a quarter of a second.
    atexit.register(gc.freeze)
    open_closed_streams()
    if COMPLETION_VARIABLE in os.environ:
        commands.main(prog_name="ccbench", complete_var=COMPLETION_VARIABLE)
    words = list(sys.argv[1:] if arguments is None else arguments)
    with watched_stdout() as stdout:
        exit_code = _exit_code(command, words, stdout)
    drop_if_broken(sys.stderr)
    sys.exit(exit_code)


def _exit_code(command: click.Command, arguments: list[str], stdout: WatchedStream) -> int:
    # Not click's own main(): that leaves with 1 when stdout's reader is gone, which here means wrong results.
    try:
        with command.make_context("ccbench", arguments) as context:
            result = command.invoke(context)
        stdout.flush()
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as mistake:
        text = io.StringIO()
        mistake.show(text)
        say(text.getvalue().rstrip())
        return USAGE
    except CcbenchError as error:
        say(f"ccbench: error: {' '.join(str(error).split())}")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        say("ccbench: interrupted")
        return INTERRUPTED
    except Exception as error:
        # A library that the loader finds no room for says so in words alone.
        if isinstance(error, MemoryError) or any(words in str(error) for words in NO_ROOM):
            say(
                "ccbench: error: out of memory; raise the limit (ulimit -v), or name less at once"
            )
            return CcbenchError.exit_code
        # Only stdout's own failure: one of a file that nobody foresaw is a bug.
        if not isinstance(error, OSError) or error is not stdout.failure:
            say(
                f"ccbench: this is a bug in ccbench {__version__} ({type(error).__name__}); please report:"
            )
            say("".join(traceback.format_exception(error)))
            return BUG
        drop(sys.stdout)
        if error.errno == errno.EPIPE:
            return READER_GONE
        say(
            f"ccbench: error: stdout: cannot be written ({error.strerror}); send it somewhere else"
        )
        return CcbenchError.exit_code
    return result if isinstance(result, int) else FINE
