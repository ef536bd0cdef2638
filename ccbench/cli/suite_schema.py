"""``ccbench suite-schema``."""

from __future__ import annotations

import click

from ccbench.cli.output import print_json


@click.command("suite-schema", short_help="Print the JSON schema of suite files, for editors.")
def print_suite_schema() -> None:
    """Print the JSON schema of suite files.

    An editor that knows it completes and checks suites as you type.
    """
    from ccbench.suite import suite_schema

    print_json(suite_schema())
