"""Small integers in machine words."""
