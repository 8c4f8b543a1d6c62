"""From tensors to a file."""
