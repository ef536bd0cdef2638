"""Benchmarks of ccbench itself, run by hand on a quiet machine; docs/design.md has figures."""
