"""The same point over many runs: where its level changed, and what changed on the machine with it."""
