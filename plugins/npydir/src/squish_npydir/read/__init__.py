"""A directory's manifest, files and dialects."""
