"""The interface of model families."""
