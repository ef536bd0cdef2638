"""Stands in for CuPy in worker processes that a test starts: NCCL's double upon emulated GPUs.

The number of GPUs is what FAKE_GPUS says. Put the folder above this one on PYTHONPATH.
"""
