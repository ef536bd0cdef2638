"""Suites: a YAML file that asks one question, checked, and expanded into cases.

``load_suite`` reads, ``expand`` makes cases of it. Importing this package imports pydantic, so commands
import it where they need it.
"""

from ccbench.suite.expansion import ExpansionContext, expand
from ccbench.suite.loading import load_suite, read_suite, shipped_suites
from ccbench.suite.model import SamplingRules, Suite, Sweep, suite_schema
from ccbench.suite.ranges import Range, parse_sizes

__all__ = [
    "ExpansionContext",
    "Range",
    "SamplingRules",
    "Suite",
    "Sweep",
    "expand",
    "load_suite",
    "parse_sizes",
    "read_suite",
    "shipped_suites",
    "suite_schema",
]
