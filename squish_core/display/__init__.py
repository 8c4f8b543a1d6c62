"""Text and HTML for people: tables, notebooks."""
