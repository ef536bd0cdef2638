"""Trace files, compressed or in archives: each read by the reader that knows its content, joined by rank."""
