"""From bytes to an Index, one module a section."""
