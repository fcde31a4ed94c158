"""Normalization passes that every target wants, one per quirk of real models.

A pass edits a model, or returns a new one, and counts its edits; :mod:`inlay.model.normalize` orders and gates them.
Passes that only some targets want lie with these targets (:class:`inlay.model.normalize.FloatRewrite`).
"""

__all__ = ["affine", "constants", "half", "identity", "names", "opset", "pads", "spelling", "steps"]
