"""Maps between the layouts of a family of models, applied to open files."""
