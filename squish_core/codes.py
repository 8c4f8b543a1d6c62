"""Error codes that the core or a caller switches on; docs/errors.md lists all of them."""

UNCOVERED = "uncovered"
"""A backend has no way to hold these data: the next one in the chain is tried."""
