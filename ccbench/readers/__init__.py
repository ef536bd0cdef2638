"""What other tools print, read: machines, benchmark tables, recorded jobs, one file per format."""
