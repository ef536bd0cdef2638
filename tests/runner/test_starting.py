from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_no_first_row_waits_for_a_pandas_that_somebody_has_installed(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("print('looked for')\nraise ImportError\n")
    program = (
        "import sys\n"
        "from ccbench.runner.starting import modules_imported\n"
        "with modules_imported(()):\n"
        "    pass\n"
        "print('ready', 'pyarrow.parquet' in sys.modules)\n"
        "import pyarrow\n"
        "pyarrow.Table.from_pylist([{'size': 8}])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stderr == ""
    first, *_, last = ended.stdout.splitlines()
    assert (first, last) == ("looked for", "ready True")
