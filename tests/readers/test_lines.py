from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.errors import MachineError, UsageError
from ccbench.readers.lines import (
    decoded_text,
    file_text,
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
