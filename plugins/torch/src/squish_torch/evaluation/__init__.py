"""What compression costs a model: perplexity and divergence on a text, per tensor and for tasks."""
