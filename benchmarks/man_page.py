"""Write ``docs/ccbench.1`` from the commands: ``python -m benchmarks.man_page``.

Of click's parameters and not of its help screen, so that every version of click gives the same page. click-man 0.6
leaves a line that begins with ``'`` or ``.`` as it is, which roff takes for a request and drops.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

import ccbench.exit_codes
from ccbench.cli import commands

PAGE = Path(__file__).resolve().parents[1] / "docs" / "ccbench.1"


def escaped(text: str) -> str:
    r"""``text`` as roff prints it: no escapes, no requests at the begin of a line, ``-`` that can be pasted."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def paragraphs(text: str) -> str:
    """A docstring's paragraphs; what click is told to leave unwrapped (``\\b``) stays so."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n.PP\n".join(
        f".nf\n{escaped(part[2:])}\n.fi" if part.startswith("\b\n") else escaped(part)
        for part in parts
    )


def shown_option(option: click.Option) -> str:
    """``-o, --output FILE``, with its choices where there are some."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return rf"\fB{escaped(names)}\fR"
    if isinstance(option.type, click.Choice):
        value = "|".join(map(str, option.type.choices))
    else:
        value = option.metavar or option.type.name.upper()
    return rf"\fB{escaped(names)}\fR \fI{escaped(value)}\fR"


def shown_arguments(command: click.Command) -> str:
    """The command's arguments as its usage has them."""
    words = []
    for argument in command.params:
        if isinstance(argument, click.Argument):
            word = argument.metavar or (argument.name or "").upper()
            word += "..." if argument.nargs == -1 and not word.endswith("...") else ""
            words.append(word if argument.required or word.startswith("[") else f"[{word}]")
    return " ".join(words)


def section(name: str, command: click.Command) -> Iterator[str]:
    """A command: usage, help, options."""
    yield f".SS ccbench {escaped(name)} [OPTIONS] {escaped(shown_arguments(command))}".rstrip()
    yield paragraphs(command.help or "")
    for option in command.params:
        if isinstance(option, click.Option):
            yield f".TP\n{shown_option(option)}"
            needed = " Required." if option.required else ""
            # A default that is computed differs between machines.
            shown = option.show_default and isinstance(option.default, str | int | float)
            default = f" Default: {option.default}." if shown else ""
            yield escaped(f"{option.help}{default}{needed}")


def page() -> str:
    """The whole page, in roff's man macros (man-pages(7))."""
    lines = [
        '.TH CCBENCH 1 "" "" "ccbench"',
        ".SH NAME",
        r"ccbench \- benchmark collective communication of GPUs and processes",
        ".SH SYNOPSIS",
        r"\fBccbench\fR \fICOMMAND\fR [OPTIONS] [ARGUMENTS]...",
        ".SH DESCRIPTION",
        paragraphs(commands.help or ""),
        ".SH COMMANDS",
    ]
    for name, command in sorted(commands.commands.items()):
        lines += section(name, command)
    lines += [".SH EXIT STATUS", exit_codes()]
    return "\n".join(lines) + "\n"


def exit_codes() -> str:
    """The sentence of the module that holds them."""
    return escaped(inspect.cleandoc(ccbench.exit_codes.__doc__ or "").partition("\n\n")[2])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
