"""ONNX Runtime in the browser's WebAssembly, measured in Node.

:mod:`~.install` brings the packages that a lock file pins; ``worker.mjs`` speaks the protocol of measuring programs
(:mod:`inlay.targets.command.protocol`); :mod:`~.target` is the target.
"""

__all__ = ["install", "target"]
