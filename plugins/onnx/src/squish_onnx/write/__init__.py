"""Writing: the graph of a model family, its weights, and the files beside the model."""
