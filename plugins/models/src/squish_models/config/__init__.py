"""Settings of models: `config.json` and GGUF keys, and how each is built from the other."""
