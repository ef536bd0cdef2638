"""Benchmarks of ccbench itself, run by hand on a quiet machine; docs/performance.md holds their figures."""
