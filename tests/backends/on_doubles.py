"""``python -m tests.backends.on_doubles cuda|nccl MODULE ...``: MODULE as if this machine had one GPU.

CuPy is the tests' stand-in, in this process and in all that it starts: ``cuda`` runs own kernels by their
host builds, ``nccl`` is the double of NCCL. Nothing that is timed on them means anything.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from ccbench.backends import prerequisites


def main() -> None:
    """Run the module as ``python -m`` would."""
    double, module, *arguments = sys.argv[1:]
    stand_in = str(Path(__file__).parent / double / "fake")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [stand_in, os.environ.get("PYTHONPATH")])
    )
    os.environ.setdefault("FAKE_GPUS", "1")
    sys.path.insert(0, stand_in)
    vars(prerequisites)["driver_missing"] = lambda root=None: (
        None
    )  # before others take it from there
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
