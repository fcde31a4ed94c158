"""Modules of PyTorch as ONNX models, with samples from whatever feeds them in training.

``batches`` binds what a loader yields to the arguments of a module's ``forward``, ``fakes`` writes fake quantization so
that an export keeps it, ``export`` makes the ONNX model, and ``model`` is what :func:`inlay.tune` and
:func:`inlay.quantize` find through the entry point.
"""

from inlay.integrations.torch.model import TorchModel

__all__ = ["TorchModel", "batches", "export", "fakes", "model"]
