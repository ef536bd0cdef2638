"""Settings of a case (``ccbench.cases.SETTINGS``) by the names of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ccbench.cases import SETTINGS, WORK

SETTING_DEFAULTS: Mapping[str, Any] = {axis.name: axis.default for axis in SETTINGS}
"""Fields of a case with their values in a plain one."""

SETTING_FIELDS = tuple(SETTING_DEFAULTS)

WORK_FIELDS = tuple(axis.name for axis in WORK)
"""Of these, what changes the work that is done; times of different work do not race."""
