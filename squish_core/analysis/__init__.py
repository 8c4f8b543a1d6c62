"""Questions about files: verify, diff, statistics, benchmark."""
