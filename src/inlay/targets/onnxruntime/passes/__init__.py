"""ONNX Runtime's float rewrites; :mod:`..float_rewrites` lists them in order, with reasons.

May import ``model``; normalization runs them behind its numeric gate.
"""

__all__ = ["attention", "broadcast_constants", "respelled"]
