"""ONNX Runtime's float rewrites, one pass a file; :mod:`..float_rewrites` lists them in order, with reasons.

May import ``model``; normalization runs them behind its numeric gate.
"""

__all__ = [
    "attention",
    "average_pool",
    "batch_norm",
    "broadcast_constants",
    "gemm",
    "lrn",
    "prelu",
    "skip_normalization",
]
