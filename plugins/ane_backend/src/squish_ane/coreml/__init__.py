"""Core ML packages: a file format."""
