"""The container interface, streams into files, validation, metadata and strict JSON."""
