"""Group-affine integers."""
