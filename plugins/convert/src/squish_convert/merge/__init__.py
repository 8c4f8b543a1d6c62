"""Adding LoRA adapters to a model."""
