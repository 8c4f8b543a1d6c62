"""What a directory holds of a tensor, and writing it."""
