"""Float rewrites that suit OpenVINO's CPU kernels: a table in the order in which they run.

Figures are of OpenVINO 2026.4.1 on x86-64 with AVX512-VNNI, one thread.
"""

from __future__ import annotations

from functools import partial

from inlay.model.normalize import FloatRewrite
from inlay.model.passes.half import widen_halves
from inlay.targets.openvino.passes import (
    drop_axes_behind,
    join_stacked,
    leave_a_rest,
    leave_padding_out,
    spread_short_softmax,
)
from inlay.targets.passes.few_outputs import block_few_outputs
from inlay.targets.passes.fused_operators import NORMALIZATION_OPSET, take_fused_apart
from inlay.targets.passes.gathered import LAYER_NORMALIZATION_OPSET, gather_layer_normalization
from inlay.targets.passes.image_patches import fold_focus
from inlay.targets.passes.upsampling import TO_THE_END, Worth, multiply_upsampling

_UPSAMPLING = Worth(products=40, of_few=200, scale=4, readers=TO_THE_END, few=4)
"""Share of the time of ``Resize``, by multiplications for each result, in bfloat16 and float32. To the end of the
model, by 4 and more: 21 channels 18 0.33 and 0.12, 37 0.60 and 0.53; 64 channels 18 0.47 and 0.12, 40 0.95 and 0.32. By
2: 1.13 and 0.52. Before a Conv or a Transpose, for which the kernel writes channels last: 64 channels 18 2.9 and 1.5,
and 1.8 and 2.1. Up to 4 channels the kernel is slow for every reader: before a Conv one channel 18 0.25, 240 0.43 and
0.48, three 40 0.34 and 0.46."""

FLOAT_REWRITES: tuple[FloatRewrite, ...] = (
    FloatRewrite(
        "compute halves in float32",
        widen_halves,
        "the runtime does so itself where the processor has no half precision, and Q/DQ is on float32",
        "executed graphs",
    ),
    FloatRewrite(
        "take fused operators apart",
        take_fused_apart,
        "the weights inside them are no operator's that has a precision; what the runtime fuses, it fuses again",
        "executed graphs",
        opset=NORMALIZATION_OPSET,
    ),
    FloatRewrite(
        "gather LayerNormalization",
        gather_layer_normalization,
        "what evens out channels costs nothing in the scale of that operator; its parts are one kernel in float anyway",
        "executed graphs",
        opset=LAYER_NORMALIZATION_OPSET,
    ),
    FloatRewrite(
        "fold the patches of an image into Conv",
        fold_focus,
        "slices and a Concat move the whole image twice before the first Conv",
        "yolox_nano in float: 35.8 against 39.2 ms",
    ),
    FloatRewrite(
        "compute few outputs in blocks",
        block_few_outputs,
        "kernels compute many output channels at a time, and few outputs leave most of them idle",
        "basic_pitch in float: 52.0 against 54.9 ms",
    ),
    FloatRewrite(
        "multiply by constants in place of Resize",
        partial(multiply_upsampling, worth=_UPSAMPLING),
        "the kernel is slow for few channels, and where its result is not read with channels last",
        "21x33x33 to 257x257: 1398 against 2349 us in bfloat16; 1x40x40 to 320x320: 117 against 2286",
    ),
    FloatRewrite(
        "join stacked values",
        join_stacked,
        "a Concat along the innermost axis copies one element at a time",
        "basic_pitch with the rewrites before this one: 42.7 against 51.8 ms in float",
    ),
    FloatRewrite(
        "spread short Softmax",
        spread_short_softmax,
        "the kernel takes one row at a time, however short",
        "4420 rows of two: 81 against 579 us; 2000 of four: 143 against 300 us",
    ),
    FloatRewrite(
        "leave padding out of means",
        leave_padding_out,
        "2026.4.1 takes padding that counts for the least integer, where data have a zero point",
        "a slice in 8 bits before a pool of 3x3: -5 dB without",
    ),
    FloatRewrite(
        "drop axes behind reductions",
        drop_axes_behind,
        "2026.4.1 moves scales of channels behind a reduction or a gather with the axis that these have dropped",
        "a product in 8 bits, the mean of its rows, quantized: 5 to 17 dB without; a gathered row has an axis too many",
    ),
)

_WITH_AMX = FloatRewrite(
    "leave a rest in the rows of tiles",
    leave_a_rest,
    "2026.4.1 computes convolutions wrong whose windows fill them exactly",
    "basic_pitch in bfloat16, with few outputs in blocks: 3.5 dB without, 28.5 with",
)


def float_rewrites_for(flags: frozenset[str]) -> tuple[FloatRewrite, ...]:
    """The float rewrites on a CPU whose ISA has these flags."""
    return (*FLOAT_REWRITES, _WITH_AMX) if flags & {"amx_bf16", "amx_int8"} else FLOAT_REWRITES
