"""One module for each quantization method."""
