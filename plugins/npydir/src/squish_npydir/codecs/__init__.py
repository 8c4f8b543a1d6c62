"""Codecs of npy directories."""
