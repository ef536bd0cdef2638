"""This host: its files and drivers, what a run was made under, and the flags that make a figure doubtful."""
