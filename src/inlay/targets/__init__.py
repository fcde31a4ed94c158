"""The seam to runtimes: what a target is, and the targets that come with Inlay.

May import ``tosa``, ``quant``, ``space`` and ``model``; a target imports its runtime, and nothing else in Inlay names
it. Offers :mod:`base` (the protocols ``Target`` and ``Executable``, and ``Capabilities``), :mod:`conditions` (what
rules of some targets ask), :mod:`registry` (targets by name, from entry points), and one module or folder per target:
:mod:`null` (known costs, no clock), ``onnxruntime``, ``ethos_u``.
"""

__all__ = ["base", "conditions", "ethos_u", "null", "onnxruntime", "registry"]
