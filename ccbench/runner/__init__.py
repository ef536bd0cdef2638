"""From a suite to a run folder: plan, open teams, visit every case round by round, write each at once."""
