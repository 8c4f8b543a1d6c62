"""Bytes: sources, mappings, buffers, sinks and digests, without knowledge of formats."""
