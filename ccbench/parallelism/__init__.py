"""What a training step asks of the fabric: model shapes, parallel strategies, their communication and memory."""
