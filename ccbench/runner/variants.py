"""Variants of a suite before its run: which variables they may set, and whether their libraries are there.

Suites may come from strangers, and what a variant sets is recorded in the run. So it may set variables of
libraries of communication and the two by which the system loads them, and nothing that looks like a secret.
What makes the ranks load or start a file runs that file's code: it needs the user's word.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from ccbench.cases.axes import Variant
from ccbench.machine.files import is_secret, is_variable_of_library

if TYPE_CHECKING:
    from ccbench.suite.model import Suite

LOADERS = ("LD_LIBRARY_PATH", "LD_PRELOAD")

OWN_PREFIX = "CCBENCH_"

ALLOW = "--allow-libraries"

_OF_FOLDERS = re.compile(
    r"(?:^|_)(?:PATH|DIR|FOLDER|HOME|ROOT|PREFIX|FILES?)(?:_|$)", re.IGNORECASE
)
"""Words of variables whose value is a path, however it is written."""

_OF_CODE = re.compile(
    "PLUGIN|LIB|TOOL|EXEC|AGENT|COMMAND|WRAPPER|COMPONENT|CONF|ENV|PATH|FILE|HYDRA|LAUNCHER|DEBUGGER|XTERM|BIN(_|$)"
    "|_DEST$|_OUTPUT$|_DUMP(_|$)|TMPDIR$|MAIL_TO$",
    re.IGNORECASE,
)
"""Words of variables that name plugins, tools that are started, or settings that may name those in turn
(``I_MPI_HYDRA_ENV: LD_PRELOAD=...``), and in the last line those whose values are files that a library writes
(``UCX_STATS_DEST: file:x``, ``UCX_MEMTRACK_DEST``, ``I_MPI_DEBUG_OUTPUT``, ``I_MPI_TMPDIR``), or whom it writes to:
ucs/config/global_opts.c of openucx/ucx, Developer Reference of Intel MPI."""

_OF_OPEN_MPI = re.compile("(OMPI|OPAL|ORTE|PMIX|PRTE)_MCA_")
_OF_MESSAGES = re.compile(
    "(OMPI|OPAL|ORTE|PMIX|PRTE)_MCA_"
    "(accelerator|allocator|bml|btl|coll|mpi|mpool|mtl|op|osc|part|pml|rcache|smsc)(_|$)"
)
"""Frameworks of Open MPI that move data; others start processes, with any words (``plm_rsh_args``)."""

_NETWORKS = re.compile(r"[\^=]?[0-9a-f.:]+/[0-9]{1,3}(,[0-9a-f.:]+/[0-9]{1,3})*", re.IGNORECASE)
"""``10.0.0.0/8``: a slash, and no path, in a variable that asks for networks."""


def loads_file(name: str, value: str) -> bool:
    """Return whether a library that is started with the variable may load or start a file for it."""
    if name in LOADERS or _OF_FOLDERS.search(name) or _OF_CODE.search(name):
        return True
    if _OF_OPEN_MPI.match(name) and not _OF_MESSAGES.match(name):
        return True
    networks = name.lower().endswith(("_include", "_exclude")) and _NETWORKS.fullmatch(value)
    return "/" in value and not networks


def has_files(variant: Variant) -> bool:
    """Return whether ranks of ``variant`` load or start a file that the suite names."""
    return bool(variant.library) or any(loads_file(*setting) for setting in variant.environment)


def _relative(name: str, value: str) -> str:
    """Return the first part of ``value`` that depends on the working folder, '' where there is none."""
    whole = name in LOADERS or _OF_FOLDERS.search(name)
    for part in re.split("[: ,;=]", value):
        if not part.startswith("/") and (whole or "/" in part or part in (".", "..")):
            return part or "an empty part"
    return ""


def refuse_variants(suite: Suite, elsewhere: bool = False, allowed: bool = False) -> None:
    """Raise SuiteError for a variable or a library that a variant cannot have; its value is not told.

    elsewhere: ranks run on other hosts, whose files cannot be seen from here. allowed: ranks may load and
    start files that the suite names.
    """
    for variant in suite.variants:
        for place, problem in problems_of(variant, elsewhere, allowed):
            raise suite.origin.error(("variants", variant.name, *place), problem)


def problems_of(
    variant: Variant, elsewhere: bool, allowed: bool
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the place in ``variant`` and what is wrong there, with its cure."""
    for name, value in variant.environment:
        place = ("env", name)
        if is_secret(name, value):
            yield (
                place,
                "looks like a secret; leave it out: runs are shared, and this would be recorded",
            )
        if name.startswith(OWN_PREFIX) or not (name in LOADERS or is_variable_of_library(name)):
            cure = f"write one such as NCCL_BUFFSIZE or OMPI_MCA_pml, or {' or '.join(LOADERS)}"
            yield place, f"is no variable of a library of communication; {cure}"
        if not loads_file(name, value):
            continue
        if relative := _relative(name, value):
            yield (
                place,
                f"names {relative}, which is no whole path; write whole paths, from '/' on",
            )
        missing = next(
            (path for path in re.split("[: ]", value) if not os.path.exists(path)), ""
        )
        if name in LOADERS and missing and not elsewhere:
            cure = "write whole paths of files (LD_PRELOAD) or folders (LD_LIBRARY_PATH) that are there"
            yield place, f"names {missing}, which is not there; {cure}"
    library = variant.library
    if library and not os.path.isabs(library):
        yield ("library",), "is no whole path; write the whole path, from '/' on"
    if library and not elsewhere and not os.path.exists(library):
        cure = "write the path of a library, or of the folder that an MPI is installed in"
        yield ("library",), f"is not there; {cure}"
    if has_files(variant) and not allowed:
        cure = f"if you trust this suite, run it with {ALLOW}"
        yield (), f"has the ranks load files that the suite names; {cure}"


def refuse_functions(suite: Suite, allowed: Collection[str]) -> None:
    """Raise SuiteError for a function of a file that the suite names, and that is not among those ``allowed``."""
    from ccbench.suite.functions import functions_of

    for index, sweep in enumerate(suite.sweep):
        for word in functions_of(sweep.algorithm):
            if word not in allowed:
                cure = f"if you trust this suite, run it with {ALLOW}"
                raise suite.origin.error(
                    ("sweep", index, "algorithm"),
                    f"has the ranks run {word}, which the suite names; {cure}",
                )


def planned_variants(
    suite: Suite, elsewhere: bool, allowed: bool, only_plan: bool
) -> tuple[Suite, tuple[str, ...]]:
    """Return ``suite`` as a plan may look into it, and a note on each variant that it leaves unread.

    Of a variant with files nothing but the name is left where they are not allowed, which is only_plan's way
    alone. elsewhere, allowed, and what is raised: as of ``refuse_variants``.
    """
    refuse_variants(suite, elsewhere, allowed or only_plan)
    kept = {
        variant: Variant(variant.name) if has_files(variant) and not allowed else variant
        for variant in suite.variants
    }
    return suite.model_copy(update={"variants": tuple(kept.values())}), tuple(
        f"variant {bare.name}: its files were not looked into; to run it, add {ALLOW}"
        for variant, bare in kept.items()
        if bare != variant
    )
