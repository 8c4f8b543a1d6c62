"""What compression cost a model: perplexity and divergence on a text, by tensor and for tasks."""
