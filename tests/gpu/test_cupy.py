"""CuPy has every call that the backends make, with room for what they hand it.

Needs CuPy, but neither a driver nor a GPU. CuPy's functions are compiled and have no signature to ask for;
the first line of their text is one, which is compared with the calls in the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccbench.backends import cuda

MODULES = ("runtime", "driver")
BACKENDS = Path(cuda.__file__).parents[1]
FILES = sorted(
    file for part in ("cuda", "nccl", ".") for file in (BACKENDS / part).glob("*.py")
)


def calls(file: Path) -> Iterator[tuple[str, str, int | None]]:
    """(module, function, number of arguments) of every call; None where a function is only named.

    A name counts as CuPy's module when it is called ``runtime`` or ``driver``, alone or as an attribute;
    ``partial(runtime.free, address)`` is a call with one argument.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    counted: dict[ast.expr, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not any(
            isinstance(one, ast.Starred) for one in node.args
        ):
            counted[node.func] = len(node.args) + len(node.keywords)
            if isinstance(node.func, ast.Name) and node.func.id == "partial":
                counted[node.args[0]] = len(node.args) - 1
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name in MODULES:
                yield name, node.attr, counted.get(node)


USED = sorted(
    {(module, name, given) for file in FILES for module, name, given in calls(file)},
    key=lambda call: (call[0], call[1], call[2] or 0),
)


def parameters(text: str) -> tuple[int, int]:
    """(fewest, most) arguments of a function whose text begins with ``name(type a, type b=1) -> type``."""
    inside = re.search(r"^\w+\((.*?)\)(?: ->.*)?$", text.splitlines()[0])
    assert inside, f"no signature in {text!r}"
    given = [one for one in inside[1].split(",") if one.strip()]
    return sum("=" not in one for one in given), len(given)


@pytest.mark.parametrize(("module", "name", "given"), USED)
def test_a_call_exists_and_takes_what_it_is_handed(
    module: str, name: str, given: int | None
) -> None:
    # Not every one of them can be imported by its own name, but all are attributes of cupy.cuda.
    cupy = pytest.importorskip("cupy.cuda", reason="CuPy is not installed")
    found = getattr(getattr(cupy, module), name)
    assert callable(found)
    if given is not None:
        fewest, most = parameters(found.__doc__ or "")
        assert fewest <= given <= most, found.__doc__


def test_the_calls_were_found() -> None:
    expected = {
        ("driver", "launchKernel", 11),
        ("driver", "moduleUnload", 1),
        ("runtime", "hostAlloc", 2),
        ("runtime", "freeHost", 1),
        ("runtime", "ipcCloseMemHandle", None),
        ("runtime", "ipcGetMemHandle", 1),
        ("runtime", "malloc", 1),
        ("runtime", "memGetInfo", 0),
        ("runtime", "memcpy", 4),
        ("runtime", "memcpyAsync", 5),
        ("runtime", "streamQuery", 1),
        ("runtime", "streamWaitEvent", 2),
        ("runtime", "streamBeginCapture", 2),
    }
    assert expected <= set(USED)


@pytest.mark.parametrize(
    ("text", "fewest", "most"),
    [
        ("hostAlloc(size_t size, unsigned int flags) -> intptr_t\n\nMore.", 2, 2),
        ("streamBeginCapture(intptr_t stream, int mode=streamCaptureModeRelaxed)", 1, 2),
        ("getDeviceCount() -> int", 0, 0),
    ],
)
def test_signatures_are_read_from_the_first_line(text: str, fewest: int, most: int) -> None:
    assert parameters(text) == (fewest, most)
