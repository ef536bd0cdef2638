"""CuPy has every call that the backends make. Needs CuPy, but neither a driver nor a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ccbench.backends import cuda

USED = sorted(
    {
        (module, name)
        for file in Path(cuda.__file__).parent.glob("*.py")
        for module, name in re.findall(r"\b(runtime|driver)\.([a-z]\w+)", file.read_text(encoding="utf-8"))
    }
    - {("runtime", "py")}
)


@pytest.mark.parametrize(("module", "name"), USED)
def test_a_call_exists(module: str, name: str) -> None:
    found = pytest.importorskip(f"cupy.cuda.{module}", reason="CuPy is not installed")
    assert callable(getattr(found, name))


def test_the_calls_were_found() -> None:
    assert {("runtime", "malloc"), ("driver", "launchKernel"), ("runtime", "ipcGetMemHandle")} <= set(USED)
