"""What runs say: two of them compared, a machine judged, advice, change over time."""
