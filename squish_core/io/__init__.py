"""Bytes: sources, mappings, buffers, sinks, digests. Knows no format."""
