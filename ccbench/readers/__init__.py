"""Readers of what other tools print: machines, benchmark tables, recorded jobs, one file per format."""
