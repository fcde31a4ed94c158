"""Model in: load, normalize, and an immutable indexed graph."""
