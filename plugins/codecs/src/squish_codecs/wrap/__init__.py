"""Codecs that wrap another codec."""
