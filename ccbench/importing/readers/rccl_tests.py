"""Reads the output of AMD's rccl-tests: its text, which is nccl-tests', and its JSON and CSV reports."""

from __future__ import annotations

from ccbench.importing.log import ImportedLog
from ccbench.importing.readers import nccl_tests, rccl_tests_reports

_MARKS = ("rccl-tests", "RCCL version", "librccl")
_LOOKED_AT = 1 << 16
"""Characters of a text that are searched for the library's name."""


def recognises(text: str) -> bool:
    """Whether ``text`` is a report of rccl-tests, or text of nccl-tests' form that names RCCL."""
    if rccl_tests_reports.recognises(text):
        return True
    start = text[:_LOOKED_AT]
    return any(mark in start for mark in _MARKS) and nccl_tests.recognises(text)


def read(text: str) -> ImportedLog:
    """The log that ``text`` is; raises nothing (see the modules this one chooses from)."""
    if rccl_tests_reports.recognises(text):
        return rccl_tests_reports.read(text)
    return nccl_tests.read(text)
