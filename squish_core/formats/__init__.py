"""The container interface: detection, validation, metadata."""
