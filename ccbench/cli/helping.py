"""``ccbench help``: the pages of docs/, which the wheel carries."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import click

from ccbench.cli.naming import commands_of
from ccbench.cli.output import completing, screen_width
from ccbench.errors import UsageError


def pages() -> dict[str, Path]:
    """Return the pages by their names. Raises CcbenchError where the installation has none."""
    from ccbench.documents import shipped_folder

    found = sorted(shipped_folder("docs").glob("*.md"))
    return {path.stem: path for path in found if path.stem != "README"}


def _topics(context: click.Context) -> Iterable[str]:
    return sorted({*pages(), *commands_of(context)})


@click.command("help", short_help="Show a page of the documentation, or list the pages.")
@click.argument("topic", required=False, shell_complete=completing(_topics))
@click.option("--no-pager", is_flag=True, help="Print a long page at once on a terminal, too.")
@click.pass_context
def show_help(context: click.Context, topic: str | None, no_pager: bool) -> None:
    """Show the page called TOPIC, the options of a command that has no page, or the list of pages.

    Works without a network. A page is laid out on a terminal, and is Markdown, as it was written, in a pipe.
    """
    if topic is None:
        headings = {
            name: path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            for name, path in pages().items()
        }
        width = max(map(len, headings))
        for name, heading in headings.items():
            click.echo(f"{name:{width}}  {heading}")
        others = sorted(commands_of(context).keys() - headings)
        listed = textwrap.fill(", ".join(others), screen_width())
        click.echo(f"\nCommands, whose options are shown:\n{listed}")
        click.echo(
            "\nccbench help TOPIC shows one; of a command, ccbench COMMAND --help its options."
        )
        return
    # Messages and pages cite docs/replay.md#jobs-that-hang.
    name = Path(topic.partition("#")[0]).name.removesuffix(".md")
    if page := pages().get(name):
        text = page.read_text(encoding="utf-8")
        if not sys.stdout.isatty():
            click.echo(text, nl=False)
            return
        from rich.console import Console
        from rich.markdown import Markdown

        # Without styles: stdout lets no escape sequence through, and not every pager shows them.
        screen = Console(width=screen_width(), color_system=None)
        with screen.capture() as captured:
            screen.print(Markdown(text, hyperlinks=False))
        laid_out = captured.get()
        if no_pager or laid_out.count("\n") < shutil.get_terminal_size().lines:
            click.echo(laid_out, nl=False)
        else:
            click.echo_via_pager(laid_out)
        return
    if name not in _topics(context):
        from ccbench.units import suggestion

        raise UsageError(f"{topic}: no such page; {suggestion(name, _topics(context))}")
    command = commands_of(context)[name]
    click.echo(command.get_help(click.Context(command, context.parent, name)))
