"""``python -m ccbench`` is ``ccbench``."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def start() -> NoReturn:
    """Run ``ccbench``; Ctrl-C ends it in the same way while it is still being loaded."""
    try:
        from ccbench.cli import main
    except KeyboardInterrupt:
        print("ccbench: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    main()


if __name__ == "__main__":
    start()
