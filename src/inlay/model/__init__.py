"""The model as a graph: read, normalized, indexed, and stored once.

May import the values in the package root only. Offers :mod:`load` (files to models), :mod:`normalize` and :mod:`passes`
(one pass per quirk, gated by a numeric check), :mod:`graph` (the immutable index that all analysis reads), :mod:`store`
(weights on disk, shared by all candidates), :mod:`reference` (the numeric oracle), :mod:`guard` (native code in a
process that can be killed, a :mod:`child` that runs what is :mod:`native`),
:mod:`onnx_library` and :mod:`libraries`.
"""

__all__ = [
    "child",
    "graph",
    "guard",
    "libraries",
    "load",
    "native",
    "normalize",
    "onnx_library",
    "passes",
    "reference",
    "store",
]
