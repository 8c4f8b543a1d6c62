"""GGML block types for Squish."""
