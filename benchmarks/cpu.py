"""ccbench's CPU backend against three MPIs and Gloo, interleaved in one run; by hand, never in CI.

    python benchmarks/cpu.py --python-openmpi E1/bin/python --python-mpich E2/bin/python \\
        --python-intelmpi E3/bin/python --python-gloo E4/bin/python --json run.json --into figures.md

Every round visits every (contender, point) once, in a shuffled order of its own. All teams live through the
whole run and sleep while another one is measured. Gloo has no pinning, and its all_reduce is in place.
Exit codes: 0 all targets met, 1 one missed or a wrong result, 2 usage, 3 something could not be judged.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # so that a checkout runs uninstalled

from benchmarks.session import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
