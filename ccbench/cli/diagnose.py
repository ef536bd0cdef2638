"""``ccbench diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ccbench.cli.output import (
    as_json,
    files_meant,
    print_json,
    screen_width,
    with_stdin,
)
from ccbench.cli.stating import stated_system, states_where_measured


@click.command(short_help="Say what is wrong, from what a terminal, a log or a hang left.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@states_where_measured
@as_json
def diagnose(
    files: tuple[Path, ...],
    as_json: bool,
    **stated: Any,
) -> int:
    """Say what FILEs show: the answer first, then each finding with its lines, then what was not read.

    FILEs are what is at hand, of one incident: an NCCL_DEBUG=INFO log, output of nccl-tests, nvidia-smi topo
    -m, dumps of a hang, a paste of several of them; - reads stdin. Exit code 0: nothing wrong is visible; 1: a
    problem; 3: it cannot be said; 4: the program hung; 5: it crashed, or the output is cut off.
    """
    from ccbench.analysis.diagnose import answer_of
    from ccbench.readers.evidence import read_evidence
    from ccbench.report.diagnosis_text import (
        diagnosis_document,
        diagnosis_lines,
    )

    system = stated_system(**stated)
    with with_stdin(files) as paths:
        answer = answer_of(read_evidence(files_meant(paths)), system)
        if as_json:
            print_json(diagnosis_document(answer))
        else:
            click.echo("\n".join(diagnosis_lines(answer, screen_width())))
    return answer.exit_code
