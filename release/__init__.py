"""Releases: what must be true before one, its notes, what its packages hold, and its tag. Run by the Makefile."""
