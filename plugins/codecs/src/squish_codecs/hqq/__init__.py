"""Half-quadratic quantization."""
