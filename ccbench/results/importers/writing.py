"""Imported files -> one run folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ccbench.results import RunFolder
from ccbench.results.importers.log import ImportedLog
from ccbench.results.importers.pricing import Pricer
from ccbench.results.importers.ranks import Given
from ccbench.results.importers.runs import Imported, described, imported
from ccbench.results.rows import imported_case_id


def import_logs(logs: Sequence[tuple[Path, ImportedLog]], given: Given) -> tuple[Imported, ...]:
    """Return what each file gives, under a short source name that no two of them share."""
    names = unique_names([path for path, _ in logs])
    return tuple(
        _told(imported(replace(log, source=name), given), given)
        for name, (_, log) in zip(names, logs, strict=True)
    )


def _told(file: Imported, given: Given) -> Imported:
    """``file`` with a note where what it shows of its nodes counts before ``--nodes``."""
    others: dict[int, list[str]] = {}
    for number, table in enumerate(file.log.tables, start=1):
        if given.nodes and table.nodes and table.nodes != given.nodes:
            others.setdefault(table.nodes, []).append(str(number))
    notes = tuple(
        f"{file.log.source}: table {', '.join(tables)} {'is' if len(tables) == 1 else 'are'} of "
        f"{nodes} {'node' if nodes == 1 else 'nodes'}, as the output shows; --nodes {given.nodes} is not used"
        for nodes, tables in others.items()
    )
    return replace(file, notes=(*file.notes, *notes))


def each_once(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The files in order, and those that are the same file as an earlier one."""
    seen: set[Path] = set()
    once: list[Path] = []
    again: list[Path] = []
    for path in paths:
        real = Path(os.path.realpath(path))
        (again if real in seen else once).append(path)
        seen.add(real)
    return tuple(once), tuple(again)


def unique_names(paths: Sequence[Path]) -> list[str]:
    """The file names; where two are the same, as much of their paths as tells them apart."""
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    names = []
    for one in parts:
        length = 1
        while length < len(one) - 1 and sum(other[-length:] == one[-length:] for other in parts) > 1:
            length += 1
        names.append("/".join(one[-length:]))
    repeats: Counter[str] = Counter()
    for index, name in enumerate(names):
        repeats[name] += 1
        if repeats[name] > 1:
            names[index] = f"{name} ({repeats[name]})"  # the very same file, given again
    return names


def write_import(
    folder: Path, files: Sequence[Imported], given: Given, name: str, pricer: Pricer | None = None
) -> Path:
    """Write ``files`` as one run and return its folder.

    name: of the run, in titles. pricer: gives every case its bound and prediction, and learns which it
    cannot; one for ``given`` by default. Raises RunFolderError as RunFolder does.
    """
    pricer = pricer or Pricer(given)
    with RunFolder.create(folder, _manifest(files, given, name)) as run:
        written: set[str] = set()
        for file in files:
            for one in file.cases:
                origin = one.origin
                # Two rows of one line that say the same: both are kept, as tables of their own.
                while imported_case_id(one.measurement.case, origin) in written:
                    origin = replace(origin, table=origin.table + len(file.log.tables))
                written.add(imported_case_id(one.measurement.case, origin))
                priced = pricer.price(one.measurement, file.log, one.origin.table)
                run.write(one.measurement, priced, origin=origin)
        run.describe(unpriced=list(pricer.problems), priced_with=list(pricer.remarks))
    return folder


def _manifest(files: Sequence[Imported], given: Given, name: str) -> dict[str, Any]:
    from ccbench import __version__

    return {
        "suite": {"name": name},
        "machine": {"name": given.machine},
        "network": given.network,
        "nodes": given.nodes,
        "imported": [described(file) for file in files],
        "versions": {"ccbench": __version__},
    }
