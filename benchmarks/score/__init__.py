"""How good predictions are: their errors against logs that other people published."""
