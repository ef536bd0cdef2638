"""What this machine should give: machines with numbers, prices of schedules, bounds, calibration."""
