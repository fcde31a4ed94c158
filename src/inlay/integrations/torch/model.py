"""What :func:`inlay.tune` and :func:`inlay.quantize` make of a module: an ONNX model, and its samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import onnx

from inlay.errors import ModelError, UsageError
from inlay.integrations.packages import required
from inlay.integrations.torch import batches
from inlay.integrations.torch.export import Dynamic, export
from inlay.run.options import TuneOptions

_LARGEST = 2**31 - 1
"""Bytes of one message of ONNX's format."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchModel:
    """A PyTorch module with what its export should know; a module alone stands for one with the defaults.

    Attributes:
        module: a ``torch.nn.Module``.
        dynamic: the axes that are dynamic, with their names, by argument of ``forward``: ``{"x": {0: "batch"}}``. None
            for those that differ between batches, and the rows of a batch.
        most_samples: rows that are read of the data, at most.
    """

    module: Any
    dynamic: Dynamic | None = None
    most_samples: int = batches.MOST_SAMPLES

    @property
    def forward(self) -> Callable[..., Any]:
        """The module's."""
        found: Callable[..., Any] = self.module.forward
        return found


def as_onnx(model: Any, wish: Any) -> tuple[onnx.ModelProto, Any]:
    """A module as an ONNX model, and ``wish`` with samples that fit it: the entry point ``torch`` of ``inlay.models``.

    Raises:
        InlayError: ``model`` is no module, it cannot be exported, or the data do not fit it.
    """
    torch = required("torch", "torch", "a PyTorch module")
    asked = model if isinstance(model, TorchModel) else TorchModel(module=model)
    module = asked.module
    if isinstance(module, torch.export.ExportedProgram):
        module = module.module()
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"the model is a {type(module).__name__}: give a torch.nn.Module, or an ONNX file")
    if getattr(wish, "data", None) is None:
        raise UsageError("a PyTorch module needs data: a DataLoader, or batches, which its export follows")
    read = batches.read(wish.data, module, asked.most_samples)
    found = export(module, read, asked.dynamic)
    if found.model.ByteSize() > _LARGEST:
        raise ModelError("the module is larger than 2 GiB: export it to a file with external data, and give that")
    for note in found.notes:
        warnings.warn(note, stacklevel=3)
    changes: dict[str, Any] = {"data": list(batches.samples(read, found.inputs, found.rows))}
    if isinstance(wish, TuneOptions) and wish.labels is None and wish.metric == "top1":
        changes["labels"] = batches.labels_of(read)
    return found.model, replace(wish, **changes)
