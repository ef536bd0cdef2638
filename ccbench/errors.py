"""Every error ccbench raises on purpose.

CcbenchError                      exit 2 unless a subclass says otherwise
├── UsageError                    the command line asks for something that cannot be
├── SuiteError                    a suite file is wrong; the message starts with file and place
├── MachineError                  a machine description is wrong or unknown
├── ScheduleError                 a schedule cannot be built, or its proof failed
├── BackendUnavailable            a backend cannot work here; the message says what to install
│   ├── CannotStart               it can start no team, whatever the case: the run ends
│   └── Hung                      its ranks have stopped, or do not come up in time; exit 4
├── MissingDependency             an optional library is absent; the message has the install line
└── RunFolderError                a run folder cannot be written or read
    └── RunCutShort               it could not be written to its end; the cases before are kept; exit 5

A message says where, what was seen, what was expected and what to do, in one line.
"""

from __future__ import annotations

from ccbench.exit_codes import HUNG, PARTIAL, USAGE


class CcbenchError(Exception):
    """The root: shown to the user as one line, never as a traceback."""

    exit_code = USAGE


class UsageError(CcbenchError):
    """The command line asks for something that cannot be."""


class SuiteError(CcbenchError):
    """A suite file is wrong."""


class MachineError(CcbenchError):
    """A machine description is wrong or unknown."""


class ScheduleError(CcbenchError):
    """A schedule cannot be built for these ranks, or its proof failed."""


class BackendUnavailable(CcbenchError):
    """A backend cannot work on this machine."""


class CannotStart(BackendUnavailable):
    """A backend can start no team on this machine, whatever the case."""


class Hung(BackendUnavailable):
    """Ranks have stopped, or do not come up in time."""

    exit_code = HUNG


class MissingDependency(CcbenchError):
    """An optional library is absent."""


class RunFolderError(CcbenchError):
    """A run folder cannot be written or read."""


class RunCutShort(RunFolderError):
    """A run folder could not be written to its end; the cases before are kept."""

    exit_code = PARTIAL
