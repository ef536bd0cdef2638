"""Benchmarks of ccbench itself, run by hand on a quiet machine; docs/performance.md, design.md: figures."""
