"""What engines need of a whole model, as tables, and the check of a file against them."""
