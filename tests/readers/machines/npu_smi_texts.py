"""npu-smi info -t topo."""

from __future__ import annotations

TEXT = """\
\t   NPU0       NPU1       NPU2       CPU Affinity
NPU0       X          HCCS       HCCS       0-23,96-119
NPU1       HCCS       X          HCCS       0-23
NPU2       HCCS       HCCS       X          24-47

Legend:

  X    = Self
  SYS  = Path traversing PCIe and NUMA nodes.
"""
