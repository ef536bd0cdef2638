"""From two runs, a run and the model, or a run and published figures to verdicts that can be trusted."""
