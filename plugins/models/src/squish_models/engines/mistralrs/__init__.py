"""What mistral.rs does with a folder: its files, its settings with their types, its tensors, its tokenizer."""
