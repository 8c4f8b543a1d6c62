"""Writing: the graph of a family, its weights, and the files beside the model."""
