"""Wire 2 (Draft 4)."""
