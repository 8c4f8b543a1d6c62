"""What is installed: hooks, declarations, the registry, the catalog of known plugins."""
