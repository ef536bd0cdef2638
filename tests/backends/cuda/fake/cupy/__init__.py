"""Stands in for CuPy in processes that a test starts: CUDA emulated, with the kernels' host builds.

The number of GPUs is what FAKE_GPUS says. Put the folder above this one on PYTHONPATH.
"""
