"""Models that ONNX Runtime's own quantizer makes, to be imported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from inlay.targets.base import Feed


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # the runtime has no types
    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


def quantize_by_runtime(
    model: onnx.ModelProto,
    folder: Path,
    feeds: Iterable[Feed],
    *,
    activation: QuantType = QuantType.QUInt8,
    per_channel: bool = False,
    keep_activations: bool = False,
    operators: bool = False,
    reduce_range: bool = False,
) -> Path:
    """The file of ``model`` with Q/DQ nodes by ``quantize_static``: int8 weights, minmax ranges of ``feeds``.

    Args:
        model: in float; also written to ``folder``.
        folder: of both files.
        feeds: calibration samples.
        activation: type of the activations.
        per_channel: one weight scale per output channel.
        keep_activations: leave a Relu or Clip in place that its quantized output makes redundant.
        operators: with operators on integers in place of Q/DQ nodes.
        reduce_range: weights of 7 bits.
    """
    given, quantized = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(model, given)
    quantize_static(
        given,
        quantized,
        _Reader(feeds),
        quant_format=QuantFormat.QOperator if operators else QuantFormat.QDQ,
        reduce_range=reduce_range,
        per_channel=per_channel,
        activation_type=activation,
        weight_type=QuantType.QInt8,
        extra_options={"QDQKeepRemovableActivations": keep_activations},
    )
    return quantized


def quantize_dynamically(model: onnx.ModelProto, folder: Path, **options: object) -> Path:
    """The file of ``model`` by ``quantize_dynamic`` with ``options``; ``model`` is also written to ``folder``."""
    given, quantized = folder / "float.onnx", folder / "dynamic.onnx"
    onnx.save(model, given)
    quantize_dynamic(given, quantized, **options)
    return quantized
