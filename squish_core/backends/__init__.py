"""The backend interface, and the choice among backends."""
