"""One module per quantization method."""
