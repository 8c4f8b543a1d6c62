"""Cache tiers of npy directories."""
