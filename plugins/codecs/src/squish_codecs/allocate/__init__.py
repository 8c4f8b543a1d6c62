"""Allocators: which codec each tensor gets."""
