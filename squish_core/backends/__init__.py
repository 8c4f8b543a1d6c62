"""What a backend is, and the one that the core brings: NumPy."""
