"""From bytes to an Index, with a module for each section."""
