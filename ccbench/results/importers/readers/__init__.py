"""One reader for each tool's form of output."""
