"""Memory layouts of each codec's parts, for the compiled kernels."""
