"""Palettes: indices into a codebook."""
