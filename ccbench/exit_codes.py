"""Exit codes, the same for every command.

0 fine, 1 wrong results or slower, 2 usage or configuration, 3 no verdict, 4 timed out or hung,
5 partial, 70 a bug in ccbench, 129, 130 and 143 stopped by a signal, 141 the reader of stdout went away.
"""

from __future__ import annotations

FINE = 0
PROBLEM = 1
USAGE = 2
NO_VERDICT = 3
HUNG = 4
PARTIAL = 5
BUG = 70  # EX_SOFTWARE of BSD's sysexits.h
INTERRUPTED = 128 + 2
READER_GONE = 128 + 13
