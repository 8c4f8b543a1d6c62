"""The cost of compression: perplexity and divergence on a text, per tensor, and scores of tasks."""
