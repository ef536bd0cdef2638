"""The page of a report: one HTML file that needs no network, drawn from the same figures as the pictures."""
