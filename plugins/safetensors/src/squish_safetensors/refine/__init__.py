"""Shared code of formats inside safetensors."""
