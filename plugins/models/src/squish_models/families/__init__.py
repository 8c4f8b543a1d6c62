"""The families: tables of tensors, of forms that occur in files, and of settings."""
