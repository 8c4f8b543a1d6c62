"""Allocators: choose a codec for each tensor."""
