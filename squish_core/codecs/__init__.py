"""The codec interface, and reading encodings through it."""
