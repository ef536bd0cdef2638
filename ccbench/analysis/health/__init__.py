"""Is the machine well? Pairs of ranks against their links, and a verdict from a whole run."""
