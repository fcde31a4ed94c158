"""The seam to runtimes: what a target is, and the targets that come with Inlay.

May import ``quant``, ``space`` and ``model``; a target imports its runtime, and nothing else in Inlay names
it. Offers :mod:`base` (the protocols ``Target`` and ``Executable``, and ``Capabilities``), :mod:`conditions` (what
rules of some targets ask), :mod:`attribution` (a runtime's layers by their names), :mod:`registry` (targets by name,
from entry points), and one module or folder per target: :mod:`null` (known costs, no clock), ``onnxruntime``,
``openvino``, ``tensorrt``, ``command`` (any program). :mod:`process` and :mod:`model_file` serve those
that run another program, and ``passes`` holds float rewrites of several.
"""

from inlay.targets.base import Capabilities, Executable, Target

__all__ = [
    "Capabilities",
    "Executable",
    "Target",
    "attribution",
    "base",
    "command",
    "conditions",
    "machine",
    "model_file",
    "null",
    "onnxruntime",
    "openvino",
    "passes",
    "process",
    "registry",
    "tensorrt",
]
