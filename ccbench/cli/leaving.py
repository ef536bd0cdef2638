"""Where a command's one result goes: stdout, or a file that is there whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ccbench.cli.output import check_writable, print_json, say
from ccbench.errors import UsageError


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
    from ccbench.results.folder import write_atomically

    text = result if isinstance(result, str) else json.dumps(result, indent=2, allow_nan=False) + "\n"
    try:
        write_atomically(file, text.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"-o {file}: cannot be written ({error.strerror}); name another place") from None
    say(f"wrote {file}")
