"""Cache tiers beside a directory's own files."""
