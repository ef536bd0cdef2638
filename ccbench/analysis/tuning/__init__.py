"""What to run instead: the fastest measured choice per collective and band of sizes, where it is certain."""
