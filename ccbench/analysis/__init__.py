"""Verdicts on runs: two of them compared, a machine judged, advice, change over time.

Rules about the cases of one run, such as that a time beats its bound, are in ``ccbench.analysis.findings``.
"""
