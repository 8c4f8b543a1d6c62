"""Benchmarks: each operation beside its peers, in turns within one run. Ratios count, seconds do not."""
