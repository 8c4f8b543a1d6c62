"""What a codec is, and the one codec that the core brings: dense."""
