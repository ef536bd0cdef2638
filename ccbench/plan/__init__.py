"""The collectives of a training step: shapes of models, strategies, communication and its prices."""
