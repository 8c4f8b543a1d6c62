"""Edit files in their own format: metadata, chat template, names of tensors, tensors."""
