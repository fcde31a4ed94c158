"""Float rewrites that keep a model on Qualcomm's HTP: a table in the order in which they run."""

from __future__ import annotations

from inlay.model.normalize import FloatRewrite
from inlay.targets.passes.gelu import GELU_OPSET, gather_gelu
from inlay.targets.passes.layer_normalization import LAYER_NORMALIZATION_OPSET, gather_layer_normalization

FLOAT_REWRITES: tuple[FloatRewrite, ...] = (
    FloatRewrite(
        "gather LayerNormalization",
        gather_layer_normalization,
        "the operator runs in 8 bits as a whole; of its parts, each would be rounded",
        "partitioning of onnxruntime-qnn 2.7.0",
        opset=LAYER_NORMALIZATION_OPSET,
    ),
    FloatRewrite(
        "gather Gelu",
        gather_gelu,
        "the operator runs on the NPU; Erf, of which it is made, only on the host",
        "a BERT of two layers: 1 partition in place of 3",
        opset=GELU_OPSET,
    ),
)
