"""Conversion of files: rules, plan, streams and report."""
