"""Shared by formats that live inside safetensors."""
