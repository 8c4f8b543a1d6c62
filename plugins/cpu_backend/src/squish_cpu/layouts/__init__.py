"""How each codec's parts lie in memory for the compiled loops."""
