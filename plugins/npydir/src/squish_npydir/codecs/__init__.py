"""Codecs that only npy directories use."""
