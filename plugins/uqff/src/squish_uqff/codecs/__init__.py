"""Codecs that only UQFF uses."""
