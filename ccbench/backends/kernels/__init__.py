"""The kernels in ``kernels/`` as Python sees them: their structures, their sources, and the engine for CPUs.

kernels/README.md is the contract; this package mirrors it and adds nothing to it.
"""
