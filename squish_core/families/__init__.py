"""The interface of families of models."""
