"""``ccbench doctor``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ccbench.cli.output import as_json, print_json, show_lines

MARKS = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}


@click.command(short_help="Check what would make figures doubtful here, before measuring.")
@as_json
def doctor(as_json: bool) -> int:
    """Check what makes figures doubtful here, and print what to change.

    Covers host, GPUs and the links between them, and for each backend what it lacks and the command that
    installs it. Exit code 0 when nothing is a problem, 2 when something keeps ccbench from working.
    """
    from ccbench.backends import unavailable
    from ccbench.machine.accelerators import opened
    from ccbench.machine.doctor import backend_checks, examine, results_folder
    from ccbench.machine.files import Files
    from ccbench.machine.host import observe

    files, system = Files(), observe(driver=opened)
    checks = [
        *examine(system, files),
        *backend_checks(system, files, unavailable),
        results_folder(Path("results")),
    ]
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            show_lines([f"{MARKS[check.status]}  {check.name}: {check.seen}"], hang=9)
            show_lines([f"{'':9}-> {check.advice}"] if check.advice else [], hang=3)
    return 2 if any(check.status == "problem" for check in checks) else 0
