"""A model made ready for search: normalized, indexed, and able to turn placements into files."""
