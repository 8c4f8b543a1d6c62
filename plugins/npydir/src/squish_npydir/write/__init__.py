"""Writing npy directories."""
