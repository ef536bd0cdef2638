"""Exit codes, the same for every command; a signal ends one with 128 and its number."""

from __future__ import annotations

FINE = 0
"""Nothing wrong: also LOW and FAST."""

PROBLEM = 1
"""Slower than what was asked for, wrong results, or something wrong in what was read."""

USAGE = 2
"""Nothing was done: the command line, a suite, a file or this machine cannot be used so."""

NO_VERDICT = 3
"""Nothing can be said."""

HUNG = 4
"""Ranks have stopped, or a case took too long."""

PARTIAL = 5
"""Something crashed or was left out; what was measured is kept."""

BUG = 70
"""A fault of ccbench's own: EX_SOFTWARE of BSD's sysexits.h."""

INTERRUPTED = 128 + 2
READER_GONE = 128 + 13
"""The reader of stdout went away."""
