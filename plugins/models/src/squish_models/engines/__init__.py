"""Requirements of engines for a whole model, as tables, and the check of a file against them."""
