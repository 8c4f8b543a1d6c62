"""Wires 0.1 to 1.2."""
