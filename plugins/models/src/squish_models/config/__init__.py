"""Settings of models: `config.json` and GGUF keys, each made from the other."""
