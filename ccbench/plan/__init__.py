"""What a training step asks of the fabric: shapes of models, strategies, communication and memory."""
