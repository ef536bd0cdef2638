"""From a path or a shipped suite's name to a Suite, every mistake told in one line."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ccbench.documents import MOST_BYTES, Document, Origin, read_document
from ccbench.errors import CcbenchError, SuiteError
from ccbench.resources import shipped_folder
from ccbench.suite.model import Suite
from ccbench.suite.readers import MisfitError
from ccbench.units import shown, suggestion

_ENDINGS = (".yaml", ".yml", ".json")


def shipped_suites() -> dict[str, Path]:
    """Name to file of every suite that ships, by name."""
    return {path.stem: path for path in sorted(shipped_folder("suites").glob("*.yaml"))}


def load_suite(path_or_name: str | Path) -> Suite:
    """The suite in a file, or the shipped suite of that name. Raises SuiteError in one line."""
    path = suite_file(path_or_name)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as problem:
        raise SuiteError(f"{_place(path)}: cannot be read ({problem.strerror}); check the file") from None
    return read_suite(content, place=_place(path), name=path.stem)


def suite_file(path_or_name: str | Path) -> Path:
    """The file that a path or a shipped suite's name stands for; SuiteError when there is none."""
    text = str(path_or_name)
    path = Path(text)
    try:
        kind = path.stat().st_mode
    except OSError:
        return _shipped(text)
    except ValueError:
        raise SuiteError(f"{shown(text)}: is no file name; write a path or a suite's name") from None
    if stat.S_ISDIR(kind) and text in shipped_suites():
        return shipped_suites()[text]
    if not stat.S_ISREG(kind):
        raise SuiteError(
            f"{_place(path)}: is not a file; write the path of a suite such as suites/quick.yaml"
        )
    return path


def _shipped(text: str) -> Path:
    shipped = shipped_suites()
    if text in shipped:
        return shipped[text]
    stem = Path(text).stem
    if text.endswith(_ENDINGS) and stem in shipped:
        raise SuiteError(f"{_place(Path(text))}: no such file; the suite that ships is called {stem!r}")
    cure = suggestion(stem, shipped)
    known = f" (shipped: {', '.join(shipped)})" * cure.startswith("did you mean")
    raise SuiteError(f"{_place(Path(text))}: no such file, nor a suite that ships; {cure}{known}")


def _place(path: Path) -> str:
    text = str(path)
    return text if text.isprintable() and len(text) <= 300 else shown(text)


def read_suite(content: str | bytes, place: str = "suite", name: str = "suite") -> Suite:
    """The suite that YAML (or JSON) text describes; ``name`` is used where it does not name itself.

    Raises SuiteError in one line that begins with ``place`` and the number of the text's line.
    """
    encoded = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return suite_from_document(read_document(encoded, place), name)


def suite_from_document(document: Document, name: str = "suite") -> Suite:
    """The suite of a tree that was read already; see ``read_suite``."""
    tree: Any = document.tree
    if isinstance(tree, dict) and "suite" not in tree:
        tree = {"suite": name, **tree}
    try:
        suite = Suite.model_validate(tree)
    except ValidationError as problem:
        raise first_error(problem, document.origin) from None
    suite._origin = document.origin
    return suite


def first_error(problem: ValidationError, origin: Origin, spot: tuple[str | int, ...] = ()) -> CcbenchError:
    """Return the error that stands first in the file, below ``spot``: later ones often follow from it."""
    found = []
    for error in problem.errors(include_url=False, include_input=False):
        cause = error.get("ctx", {}).get("error")
        place = cause.place if isinstance(cause, MisfitError) else ()
        message = str(cause) if isinstance(cause, ValueError) else error["msg"]
        found.append(((*spot, *error["loc"], *place), message))
    path, message = min(found, key=lambda item: origin.line(item[0]) or 0)
    return origin.error(path, message)
