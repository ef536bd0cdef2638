"""A training step and its demands on the fabric: shapes of models, strategies, communication and memory."""
