"""``ccbench diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ccbench.cli.output import (
    as_json,
    check_writable,
    files_meant,
    print_json,
    say,
    screen_width,
    with_stdin,
)
from ccbench.cli.stating import stated_system, states_where_measured


@click.command(short_help="Say what is wrong, from what a terminal, a log or a hang left.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@states_where_measured
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page (.html).",
)
@as_json
def diagnose(
    files: tuple[Path, ...],
    output: Path | None,
    as_json: bool,
    **stated: Any,
) -> int:
    """Say what FILEs show: the answer first, then each finding with its lines, then what was not read.

    FILEs are what is at hand, of one incident: an NCCL_DEBUG=INFO log, output of nccl-tests, nvidia-smi topo
    -m, dumps of a hang, a paste of several of them; - reads stdin. Exit code 0: nothing wrong is visible; 1: a
    problem; 2: nothing was recognised; 3: it cannot be said.
    """
    from ccbench.analysis.diagnose import answer_of
    from ccbench.errors import UsageError
    from ccbench.readers.evidence import read_evidence
    from ccbench.report.diagnosis_text import (
        diagnosis_document,
        diagnosis_lines,
        diagnosis_page,
    )
    from ccbench.report.writing import write_file

    if output is not None and output.suffix.lower() != ".html":
        raise UsageError(f"-o {output}: end it in .html for a page")
    if output is not None:
        check_writable(output, "-o")
    system = stated_system(**stated)
    with with_stdin(files) as paths:
        answer = answer_of(read_evidence(files_meant(paths)), system)
        if as_json:
            print_json(diagnosis_document(answer))
        else:
            click.echo("\n".join(diagnosis_lines(answer, screen_width())))
        if output is not None:
            name = ", ".join(dict.fromkeys(path.name for path in files[:3]))
            write_file(output, diagnosis_page(answer, name).encode())
            say(f"wrote {output}")
    return int(answer.outcome)
