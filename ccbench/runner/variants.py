"""Variants of a suite before its run: which variables they may set, and whether their libraries are there.

Suites may come from strangers, and what a variant sets is recorded in the run. So it may set variables of
libraries of communication and the two by which the system loads them, and nothing that looks like a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ccbench.backends import open_backend
from ccbench.cases import Case
from ccbench.machine.files import is_secret, is_variable_of_library

if TYPE_CHECKING:
    from ccbench.suite.model import Suite

LOADERS = ("LD_LIBRARY_PATH", "LD_PRELOAD")

OWN_PREFIX = "CCBENCH_"


def refuse_variants(suite: Suite, elsewhere: bool = False) -> None:
    """Raise SuiteError for a variable or a library that a variant cannot have; its value is not told.

    elsewhere: ranks run on other hosts, whose files cannot be seen from here.
    """
    for variant in suite.variants:
        for name, value in variant.environment:
            place = ("variants", variant.name, "env", name)
            if is_secret(name, value):
                cure = "leave it out: runs are shared, and this would be recorded"
                raise suite.origin.error(place, f"looks like a secret; {cure}")
            if name.startswith(OWN_PREFIX) or not (name in LOADERS or is_variable_of_library(name)):
                cure = f"write one such as NCCL_BUFFSIZE or OMPI_MCA_pml, or {' or '.join(LOADERS)}"
                raise suite.origin.error(place, f"is no variable of a library of communication; {cure}")
            missing = next((path for path in re.split("[: ]", value) if not os.path.exists(path)), "")
            if name in LOADERS and missing and not elsewhere:
                cure = "write whole paths of files (LD_PRELOAD) or folders (LD_LIBRARY_PATH) that are there"
                raise suite.origin.error(place, f"names {missing}, which is not there; {cure}")
        if variant.library and not os.path.isabs(variant.library):
            cure = "write the whole path, from '/' on"
            raise suite.origin.error(("variants", variant.name, "library"), f"is no whole path; {cure}")
        if variant.library and not elsewhere and not os.path.exists(variant.library):
            cure = "write the path of a library, or of the folder that an MPI is installed in"
            raise suite.origin.error(("variants", variant.name, "library"), f"is not there; {cure}")


def versions_of_variants(cases: Iterable[Case]) -> Iterator[str]:
    """Yield for each library that a variant names what it says its version is."""
    for backend, variant in dict.fromkeys((case.backend, case.started_with) for case in cases):
        if variant.library:
            version = open_backend(backend).library_version(variant.library)
            yield f"variant {variant.name}: {version} ({variant.library})"
