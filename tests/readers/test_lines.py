from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ccbench.errors import MachineError, UsageError
from ccbench.readers.lines import (
    decoded_text,
    file_text,
    may_be_output,
)


def test_a_file_above_the_limit_or_that_cannot_be_read_is_refused_with_the_cure(
    tmp_path: Path,
) -> None:
    file = tmp_path / "large.txt"
    file.write_bytes(b"x" * (1 << 20))
    assert len(file_text(file, "a log", "with the rows", most_bytes=1 << 20)) == 1 << 20
    with pytest.raises(UsageError, match="larger than 0 MiB; cut out the part with the rows"):
        file_text(file, "a log", "with the rows", most_bytes=(1 << 20) - 1)
    with pytest.raises(UsageError, match=r"cannot be read \(No such file.*\); name a log"):
        file_text(tmp_path / "absent", "a log", "with the rows")
    with pytest.raises(UsageError, match=r"cannot be read \(.*null.*\); name a log"):
        file_text(Path("a\0b"), "a log", "with the rows")
    with pytest.raises(MachineError, match="stdin: larger than 1 MiB; cut out the part drawn"):
        decoded_text(b"x" * ((1 << 20) + 1), "stdin", "drawn", MachineError, 1 << 20)


def test_a_parquet_file_is_lines_with_commas_only_where_it_is_a_table_of_times(
    tmp_path: Path,
) -> None:
    columns = ["op_name", "num_gpus", "message_size", "latency"]
    times = pd.DataFrame([["all_reduce", 8, 128, 0.0051]], columns=columns)
    names = ("b200_sxm__nccl__2.23__nccl_perf.parquet", "further.parquet", "cut.parquet")
    table, further, cut = (tmp_path / name for name in names)
    times.to_parquet(table)
    times.drop(columns="latency").to_parquet(further)
    cut.write_bytes(table.read_bytes()[:-9])
    assert file_text(table, "", "").splitlines() == [
        ",".join([*columns, "device", "framework", "version"]),
        "all_reduce,8,128,0.0051,b200 sxm,nccl,2.23",
    ]
    for other in (further, cut):
        assert file_text(other, "", "").startswith("PAR1")
    assert [may_be_output(file) for file in (table, further)] == [True, False]
