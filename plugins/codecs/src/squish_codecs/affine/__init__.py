"""Group-affine integer quantization."""
