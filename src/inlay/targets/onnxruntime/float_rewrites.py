"""Float rewrites that suit ONNX Runtime's CPU kernels: a table in the order in which they run.

Figures are of ONNX Runtime 1.31 on x86-64 with AVX512-VNNI, one thread, unless a row says otherwise.
"""

from __future__ import annotations

from functools import partial

from inlay.model.normalize import FloatRewrite
from inlay.model.passes.half import widen_halves
from inlay.targets.onnxruntime.passes.attention import ATTENTION_OPSET, gather_attention
from inlay.targets.onnxruntime.passes.broadcast_constants import write_out_constants
from inlay.targets.onnxruntime.passes.respelled import (
    averagepool_to_conv,
    batchnorm_to_conv,
    gather_gemm,
    keep_additions_apart,
    mean_to_pool,
    spell_out_hardswish,
    spell_out_lrn,
    spell_out_prelu,
)
from inlay.targets.onnxruntime.passes.sequences import widen_sequences
from inlay.targets.passes.few_outputs import block_few_outputs
from inlay.targets.passes.fused_operators import NORMALIZATION_OPSET, take_fused_apart
from inlay.targets.passes.gathered import LAYER_NORMALIZATION_OPSET, gather_hardsigmoid, gather_layer_normalization
from inlay.targets.passes.image_patches import fold_focus
from inlay.targets.passes.upsampling import TO_THE_END, Worth, multiply_upsampling

_UPSAMPLING = Worth(products=40, of_few=200, readers=TO_THE_END, few=3)
"""Share of the time of ``Resize``, as the output and before a Conv, by multiplications for each result. One channel: 18
0.11, 80 0.26, 240 0.60 and 0.86; three: 40 0.35 and 0.66, 96 0.75 and 0.92. More channels pay at the end of the model,
where the kernel is slow once the Conv before it is in 8 bits: of whole networks of five such Convs 9 channels by 4 take
0.91, 21 by 2 0.92 and by 8 0.70, 64 by 2 0.82 and by 8 0.79, 100 by 2 0.86, 150 by 4 0.49, 256 by 4 0.41. Before a Conv
or a Transpose it has channels last: 64 by 2 1.12 and by 4 1.23; deeplab_v3_mnv2 8.9 ms, and 9.2 by products."""

FLOAT_REWRITES: tuple[FloatRewrite, ...] = (
    FloatRewrite(
        "compute halves in float32",
        widen_halves,
        "most CPU kernels have no half precision, and Q/DQ on halves is not fused",
        "four Convs in float16: from no gain to 1.41x",
        early=True,
    ),
    FloatRewrite(
        "take fused operators apart",
        take_fused_apart,
        "the weights inside them are no operator's that has a precision; what the runtime fuses, it fuses again",
        "a transformer of 4 layers as the runtime's optimizer writes it",
        opset=NORMALIZATION_OPSET,
        early=True,
    ),
    FloatRewrite(
        "gather attention",
        gather_attention,
        "its kernel transposes nothing; masked positions are kept from denormals",
        "12 heads of 64 over 128 rows: 1.33x, with half of the positions masked 1.47x; a step of SmolLM2-135M: "
        "outside products 3.3 in place of 8.3 ms",
        observes=True,
        opset=ATTENTION_OPSET,
        early=True,
    ),
    FloatRewrite("spell LRN out", spell_out_lrn, "the LRN kernel is slow", "a tenth of the time"),
    FloatRewrite(
        "spell PRelu out",
        spell_out_prelu,
        "LeakyRelu and Max are fused or vectorized, PRelu is not",
        "two Convs with a PRelu between them: 0.76 to 0.81 of the time in float, 0.49 to 0.9 in 8 bits",
    ),
    FloatRewrite(
        "turn BatchNormalization into Conv",
        batchnorm_to_conv,
        "a BatchNormalization that cannot be folded has no 8-bit kernel; a depthwise Conv has",
        "densenet121, pre-activation residual nets",
    ),
    FloatRewrite(
        "turn AveragePool into Conv",
        averagepool_to_conv,
        "the 8-bit AveragePool is slow",
        "26 against 411 us for 2x2 over 1x128x56x56",
    ),
    FloatRewrite(
        "gather LayerNormalization",
        gather_layer_normalization,
        "what evens out channels costs nothing in the scale of that operator; its parts are one kernel in float anyway",
        "optimized graphs",
        opset=LAYER_NORMALIZATION_OPSET,
    ),
    FloatRewrite(
        "turn ReduceMean into GlobalAveragePool",
        mean_to_pool,
        "the mean of all pixels has an integer kernel by that name only",
        "four blocks with gates in 8 bits: 0.72 of the time",
    ),
    FloatRewrite(
        "gather HardSigmoid",
        gather_hardsigmoid,
        "HardSigmoid is fused into the Conv before it; the four operators that exporters write are not",
        "optimized graphs of ppocr_cls",
    ),
    FloatRewrite(
        "spell HardSwish out",
        spell_out_hardswish,
        "the runtime does the same to it, and its parts have integer kernels",
        "functions that ONNX Runtime 1.31 inlines",
    ),
    FloatRewrite(
        "gather MatMul and Add into Gemm",
        gather_gemm,
        "a Gemm with a quantized bias has an integer kernel; the runtime would make a float Gemm of the pair",
        "optimized graphs",
    ),
    FloatRewrite(
        "keep additions apart from normalizations",
        keep_additions_apart,
        "the kernel that the runtime makes of both, SkipLayerNormalization, is not vectorized",
        "Add and LayerNormalization over 1x128x384: 368 us as one kernel, 99 apart",
    ),
    FloatRewrite(
        "fold the patches of an image into Conv",
        fold_focus,
        "slices and a Concat move the whole image twice before the first Conv",
        "yolox_nano",
    ),
    FloatRewrite(
        "compute sequences as images of one row",
        widen_sequences,
        "convolutions over images keep their values in blocks of channels; over sequences they copy each window",
        "AMX: 32 to 32 channels, 11 taps 0.57 of the time, 256 to 256, 7 taps 0.88, depthwise 31 taps 0.2; a voice of "
        "63 MB (VITS) 0.83; in 8 bits as fast as over sequences",
    ),
    FloatRewrite(
        "compute few outputs in blocks",
        block_few_outputs,
        "kernels compute many output channels at a time, and few outputs leave most of them idle",
        "32 to 3 channels 9x9: 0.38 of the time in float, 0.31 in 8 bits",
    ),
    FloatRewrite(
        "multiply by constants in place of Resize",
        partial(multiply_upsampling, worth=_UPSAMPLING),
        "the kernel gathers four numbers for every result, and products are vectorized",
        "1x40x40 to 320x320: 131 against 1270 us; a small network in 8 bits, 21x32x32 to 256x256: 1869 against 2683",
    ),
    FloatRewrite(
        "write out constants along short rows",
        write_out_constants,
        "elementwise kernels make one call per run of elements over which both operands advance evenly",
        "a scalar times 1x172x309x1: 10 against 470 us",
    ),
)
