"""Trace files: compressed or in archives, each read by the reader that knows its content, then joined by rank."""
