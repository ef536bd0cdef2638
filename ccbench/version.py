"""Version of the installed package."""

__version__ = "0.1.0"
