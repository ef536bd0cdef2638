"""Where the folders lie that ccbench ships beside its code: suites, kernels, reference results."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ccbench.errors import CcbenchError

ShippedName = Literal["suites", "kernels", "results"]

_PACKAGE = Path(__file__).resolve().parent


def shipped_folder(name: ShippedName, package: Path = _PACKAGE) -> Path:
    """The folder called ``name``: the copy inside an installed package, else the one of the checkout.

    package: the folder of the ``ccbench`` package.
    Raises CcbenchError when neither is there, which means a broken installation.
    """
    installed = package / "_shipped" / name
    checkout = package.parent / name
    if installed.is_dir():
        return installed
    # Beside an installed package lies site-packages, where a folder called "results" is not ours.
    if checkout.is_dir() and (package.parent / "pyproject.toml").is_file():
        return checkout
    raise CcbenchError(
        f"{installed}: the shipped folder {name!r} is missing, and {checkout} is not a checkout's; "
        "install ccbench again"
    )
