"""Components beside the text layers: vision towers with their projectors."""
