"""Other tools' outputs become runs."""
