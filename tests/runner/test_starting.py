from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from ccbench.runner.starting import modules_imported
with modules_imported(()):
    pass
import pyarrow
table = pyarrow.Table.from_pylist([{'size': 8}])
print('pyarrow.parquet' in sys.modules, 'pandas' in sys.modules)
print(table.to_pandas()['size'].tolist())
"""


def test_no_row_waits_for_pandas_and_who_asks_for_a_frame_gets_one() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["True False", "[8]"]
