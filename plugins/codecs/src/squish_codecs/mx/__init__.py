"""Microscaled floats."""
