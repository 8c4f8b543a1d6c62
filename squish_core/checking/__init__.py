"""Analysis of files: verify, diff, statistics, benchmark."""
