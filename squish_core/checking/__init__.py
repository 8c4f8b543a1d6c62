"""Checking files: `verify`, and maps over tensors in worker processes."""
