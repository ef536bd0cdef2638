"""What NCCL and its relatives should take on a cluster: their algorithms and protocols, priced."""
