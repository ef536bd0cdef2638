"""Imports go down only: read from the source, so that an import inside a function counts too."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import ccbench.backends  # noqa: F401 - declares them
from ccbench.cases.capabilities import DECLARED, backend_names

PACKAGE = Path(__file__).resolve().parents[1] / "ccbench"

# The ground, lowest first: no processes, no backend; each knows those before it.
VOCABULARY = (
    "version",
    "exit_codes",
    "errors",
    "units",
    "columns",
    "findings",
    "flags",
    "documents",
    "dtypes",
    "groups",
    "collectives",
    "cases",
    "stats",
    "inexact",
    "verification",
)

# Nine layers of packages, lowest first. Packages of one layer do not know each other.
PACKAGES: tuple[tuple[str, ...], ...] = (
    ("schedules", "suite", "topology"),
    ("readers",),
    ("machine",),
    ("model",),
    ("backends", "results"),
    ("runner",),
    ("analysis", "plan"),
    ("report",),
    ("cli",),
)
LAYERS = (*((module,) for module in VOCABULARY), *PACKAGES, ("__main__",))
LAYER_OF = {part: height for height, layer in enumerate(LAYERS) for part in layer}


def sources(package: Path) -> Iterator[tuple[str, Path]]:
    """(module, file) of every module; ``schedules.ring`` for ``ccbench/schedules/ring.py``."""
    for file in sorted(package.rglob("*.py")):
        names = file.relative_to(package).with_suffix("").parts
        yield ".".join(names[:-1] if names[-1] == "__init__" else names), file


@cache
def imported(file: Path) -> tuple[tuple[int, str], ...]:
    """(line, module) of every import of ccbench in ``file``."""
    return tuple(_imported(ast.parse(file.read_text(encoding="utf-8"))))


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "a relative import"
            elif node.module == "ccbench":
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif node.module and node.module.startswith("ccbench."):
                yield node.lineno, node.module.removeprefix("ccbench.")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "ccbench":
                    yield node.lineno, alias.name.removeprefix("ccbench.")


def violations(package: Path) -> list[str]:
    """One line for every import that does not go down."""
    found = []
    for module, file in sources(package):
        if not module:
            continue  # the package's front door names everything and is imported by nothing
        part = module.split(".")[0]
        if part not in LAYER_OF:
            found.append(f"{file.name}: {part} has no layer; give it one in LAYERS")
            continue
        for line, target in imported(file):
            other = target.split(".")[0]
            if other not in LAYER_OF:
                found.append(f"{module}:{line} imports {target}, which has no layer")
            elif other != part and LAYER_OF[other] >= LAYER_OF[part]:
                found.append(f"{module}:{line} imports {target}, which is not below it")
    return found


def test_every_import_goes_down() -> None:
    assert violations(PACKAGE) == []


def files_imported(root: Path, packages: tuple[str, ...]) -> dict[str, set[str]]:
    """Module -> modules that it imports, of ``packages``; imports in functions and for types alone count."""
    modules = {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
        for package in packages
        for file in sorted((root / package).rglob("*.py"))
    }
    imports: dict[str, set[str]] = {}
    for module, file in modules.items():
        named: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                # ``from package import module`` imports the module, ``from module import name`` the module, too.
                paths = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {path if path in modules else node.module for path in paths}
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
        imports[module] = named & set(modules) - {module}
    return imports


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other, the first again at the end; empty without any."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_import_each_other() -> None:
    assert circle(files_imported(PACKAGE.parent, ("ccbench", "benchmarks"))) == []


@pytest.mark.parametrize(
    "back",
    [
        "from ccbench.ring import step",
        "def f():\n    from ccbench import ring",
        "if TYPE_CHECKING:\n    import ccbench.ring",
    ],
)
def test_a_planted_circle_is_seen(tmp_path: Path, back: str) -> None:
    (tmp_path / "ccbench").mkdir()
    (tmp_path / "ccbench" / "ring.py").write_text("from ccbench.tree import root\n")
    (tmp_path / "ccbench" / "tree.py").write_text(back + "\n")
    assert set(circle(files_imported(tmp_path, ("ccbench",)))) == {
        "ccbench.ring",
        "ccbench.tree",
    }


def origins(file: Path) -> Iterator[str]:
    """Yield ``schedules`` and ``schedules.ring`` for ``from ccbench.schedules import ring``."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ccbench."):
            origin = str(node.module).removeprefix("ccbench.")
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def naming_a_backend(package: Path, backends: Collection[str]) -> list[str]:
    """Return what imports the code of one of ``backends`` (dotted modules) from outside ccbench.backends."""
    return sorted(
        {
            f"{name} imports {named}"
            for name, file in sources(package)
            if name.split(".")[0] != "backends"
            for origin in origins(file)
            if (named := ".".join(origin.split(".")[:2])) in backends
        }
    )


BACKENDS = {
    ".".join(DECLARED[name].entry_point.partition(":")[0].split(".")[1:3])
    for name in backend_names()
}


def test_nothing_but_the_table_of_backends_names_one() -> None:
    assert naming_a_backend(PACKAGE, BACKENDS) == []


@pytest.mark.parametrize(
    "line",
    [
        "from ccbench.backends.mpi.library import installed",
        "from ccbench.backends.cuda import driver_missing",
        "from ccbench.backends import cuda_host",
    ],
)
def test_a_planted_name_of_a_backend_is_seen(tmp_path: Path, line: str) -> None:
    planted = tmp_path / "ccbench" / "runner.py"
    planted.parent.mkdir()
    planted.write_text(f"from ccbench.backends import open_backend\n{line}\n")
    (found,) = naming_a_backend(tmp_path / "ccbench", BACKENDS)
    assert found.startswith("runner imports backends.")


def known(package: Path) -> dict[str, set[str]]:
    """Package -> packages that its modules import."""
    packages = [part for layer in PACKAGES for part in layer]
    found: dict[str, set[str]] = {part: set() for part in packages}
    for module, file in sources(package):
        part = module.split(".")[0]
        if part in found:
            found[part] |= {target.split(".")[0] for _, target in imported(file)} & set(
                packages
            ) - {part}
    return found


def picture(package: Path) -> str:
    """The packages and their imports as a Mermaid graph; an import that another one implies has no arrow."""
    direct = known(package)
    reached: dict[str, set[str]] = {}
    lines = ["graph TD"]
    for part in (part for layer in PACKAGES for part in layer):
        implied = set().union(*(reached[other] for other in direct[part]))
        reached[part] = direct[part] | implied
        lines += [f"    {part} --> {other}" for other in sorted(direct[part] - implied)]
    return "\n".join(lines)


def test_the_picture_in_the_docs_is_drawn_from_the_imports() -> None:
    page = (PACKAGE.parent / "docs" / "design.md").read_text(encoding="utf-8")
    assert page.split("```mermaid\n")[1].split("\n```")[0] == picture(PACKAGE)


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("units.py", "from ccbench.runner.run import run_suite", "not below"),
        ("cases/axes.py", "def f():\n    from ccbench.schedules import ring", "not below"),
        ("suite.py", "import ccbench.cli.run", "not below"),
        ("schedules/ring.py", "from . import tree", "no layer"),
        ("cases/axes.py", "from ccbench import load_suite", "no layer"),
        ("helpers.py", "", "has no layer"),
    ],
)
def test_a_planted_violation_is_seen(
    tmp_path: Path, file: str, line: str, complaint: str
) -> None:
    planted = tmp_path / "ccbench" / file
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(line + "\n")
    (found,) = violations(tmp_path / "ccbench")
    assert complaint in found


@pytest.mark.parametrize(
    ("file", "line"),
    [
        (
            "runner.py",
            "from ccbench.backends.cpu import team\nfrom ccbench.version import __version__",
        ),
        ("schedules/ring.py", "from ccbench.schedules.schedule import Schedule"),
        ("__init__.py", "from ccbench.cli import main"),
    ],
)
def test_an_import_that_goes_down_or_stays_inside_its_part_is_fine(
    tmp_path: Path, file: str, line: str
) -> None:
    planted = tmp_path / "ccbench" / file
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(line + "\n")
    assert violations(tmp_path / "ccbench") == []
