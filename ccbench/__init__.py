"""ccbench: how fast are this machine's collectives, is that what it should give, what to run instead."""

__version__ = "0.1.0"
