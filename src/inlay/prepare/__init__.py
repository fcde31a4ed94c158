"""A model prepared for one target: normalized, indexed, and able to turn placements into files.

May import ``targets`` and what lies below them: measuring, calibration and search come after it. Offers :mod:`model`
(``prepare`` and its result, ``PreparedModel``), :mod:`candidate_writer` (placements as files), :mod:`qdq_import`
(baselines that the user gives), :mod:`options` (the options of the commands, each declared once), :mod:`config` (the
settings of a run) and :mod:`protocol` (how its latency is to be measured).
"""

__all__ = ["candidate_writer", "config", "model", "options", "protocol", "qdq_import"]
