"""How a layer is stored in a file."""
