"""From a suite to a run folder: plan, open teams, round every case round by round, write each at once."""
