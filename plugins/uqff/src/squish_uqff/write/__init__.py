"""What a layer becomes in a file."""
