"""``python -m ccbench`` is ``ccbench``."""

from __future__ import annotations

from ccbench.cli import main

if __name__ == "__main__":
    main()
