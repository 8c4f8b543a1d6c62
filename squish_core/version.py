"""The version of squish-core, and of the distributions that are released with it."""

__version__ = "0.1.0"
