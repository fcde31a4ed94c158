"""A model prepared for one target: normalized, indexed, and able to turn placements into files.

May import ``regions``, ``measure``, ``targets`` and what lies below them. Offers :mod:`model` (``prepare`` and its
result, ``PreparedModel``), :mod:`candidate_writer` (placements as files), :mod:`qdq_import` (baselines that the user
gives), :mod:`options` (the options of the commands, each declared once) and :mod:`config` (the settings of a run).
"""

__all__ = ["candidate_writer", "config", "model", "options", "qdq_import"]
