"""From a suite to a run folder: plan, open teams, measure every case round by round, write each at once."""
