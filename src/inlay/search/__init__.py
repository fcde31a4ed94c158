"""Strategies that propose placements."""
