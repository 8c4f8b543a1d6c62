"""Text tables, and HTML for notebooks."""
