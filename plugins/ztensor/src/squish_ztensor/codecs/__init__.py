"""Codecs that only zTensor uses."""
