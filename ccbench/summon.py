"""``python -m ccbench.summon COMMAND...``: stands where a launcher would, and has every seat start COMMAND.

Its lines are what ranks said that have ended; it ends when all have, or when the assembly is gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from ccbench.errors import UsageError
from ccbench.exchange import ADDRESSES_VARIABLE, KEY_VARIABLE
from ccbench.rank import connect
from ccbench.seats import (
    ASSEMBLY_KEY_VARIABLE,
    ASSEMBLY_VARIABLE,
    HAND_ON_VARIABLE,
    SEATS_VARIABLE,
    Report,
    Summons,
)

_OWN = (ASSEMBLY_VARIABLE, ASSEMBLY_KEY_VARIABLE, "CCBENCH_RUNNER")


def handed_on(variables: Mapping[str, str]) -> dict[str, str]:
    """What ranks on other hosts must be told of this process's environment."""
    named = variables.get(HAND_ON_VARIABLE, "").split()
    return {
        name: value
        for name, value in variables.items()
        if name in named or (name.startswith("CCBENCH_") and name not in _OWN)
    }


def main(command: list[str]) -> int:
    """The first exit code that is not 0."""
    variables = os.environ
    try:
        assembly = {
            ADDRESSES_VARIABLE: variables.get(ASSEMBLY_VARIABLE, ""),
            KEY_VARIABLE: variables.get(ASSEMBLY_KEY_VARIABLE, ""),
        }
        connection = connect(assembly)
    except UsageError as error:
        print(error)
        return error.exit_code
    connection.send(Summons(tuple(command), handed_on(variables)))
    failed = 0
    with suppress(EOFError, OSError):
        for _ in range(int(variables[SEATS_VARIABLE])):
            report = connection.recv()
            assert isinstance(report, Report)
            print(report.words, end="", flush=True)
            failed = failed or report.exit_code
            if failed:
                break
        return failed
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
