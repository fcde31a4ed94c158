"""What kernels of a GPU take by its data sheet: the longer of moving their bytes and of their products, and a launch.

An estimate, not a measurement: caches, the shapes that suit a kernel, and what the driver fuses as it loads an engine
are left out. Candidates are compared by it where no GPU is at hand; only a GPU can tell how fast a model is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from inlay.targets.tensorrt.reports import PRODUCTS, Layer, Tensor

_LAUNCH_US = 2.0  # from one short kernel of a CUDA graph to the next: an assumption, for which no source was found
_WIDTHS = {"int4": 4, "float4": 4, "int8": 8, "float8": 8, "bool": 8, "float16": 16, "bfloat16": 16, "int64": 64}
_FULL = 32  # bits of all other types


@dataclass(frozen=True)
class Gpu:
    """A GPU of a compute capability.

    Attributes:
        like: its name.
        bandwidth: of its memory, GB/s.
        tera_ops: products and sums of dense matrices, 10^12 in a second (a multiply-accumulate is two), by the bits of
            the wider operand.
    """

    like: str
    bandwidth: float
    tera_ops: dict[int, float]

    def __str__(self) -> str:
        rates = ", ".join(f"{bits} bits {rate:g}" for bits, rate in sorted(self.tera_ops.items()))
        return f"{self.bandwidth:g} GB/s; 10^12 operations a second: {rates}; {_LAUNCH_US:g} us a kernel"


# Dense matrices; 16 bits summed in 32; 32 bits are TF32 where there is that, which builders allow by default; 8 bits
# are INT8, of which GeForce has half for FP8 that is summed in 32 bits. Where each line is from:
# - SM75, SM86: memory, and 68 multiprocessors with 1.545 and 1.71 GHz, as published at the launch; rates from these,
#   with 512 operations of 16 bits for each clock and multiprocessor, as SM89 has them;
# - SM80: NVIDIA's A100 data sheet;
# - SM89: published tables after NVIDIA's Ada paper, which give 82.6, 165.2, 660.6 and, for INT4, 1321;
# - SM120: half of NVIDIA's 3352 "AI TOPS", which are FP4 with sparsity; below that the ratios of SM89. There is no fast
#   INT4, so that 4 bits are FP4;
# - SM121: NVIDIA's bandwidth, and half of its 1000 of FP4 with sparsity; below that the ratios of SM120.
GPUS = {
    "SM75": Gpu("GeForce RTX 2080 Ti", 616, {32: 13.4, 16: 53.8, 8: 215, 4: 430}),
    "SM80": Gpu("A100 40 GB", 1555, {32: 156, 16: 312, 8: 624, 4: 1248}),
    "SM86": Gpu("GeForce RTX 3080", 760, {32: 29.8, 16: 59.5, 8: 238, 4: 476}),
    "SM89": Gpu("GeForce RTX 4090", 1008, {32: 82.6, 16: 165, 8: 661, 4: 1321}),
    "SM120": Gpu("GeForce RTX 5090", 1792, {32: 105, 16: 210, 8: 838, 4: 1676}),
    "SM121": Gpu("GB10", 273, {32: 31.3, 16: 62.5, 8: 250, 4: 500}),
}


def milliseconds(layer: Layer, gpu: Gpu) -> float:
    """The estimate for all runs of one layer of an engine in an inference."""
    bits = sum(prod(t.shape) * _width(t) for t in (*layer.inputs, *layer.constants, *layer.outputs))
    seconds = bits / 8 / (gpu.bandwidth * 1e9)
    if count := products(layer):
        widest = max(_width(t) for t in _operands(layer))
        seconds = max(seconds, 2 * count / (gpu.tera_ops[min(widest, _FULL)] * 1e12))
    return layer.runs * (1e3 * seconds + 1e-3 * _LAUNCH_US)


def products(layer: Layer) -> int:
    """Multiply-accumulates of one run; 0 where no matrices are multiplied."""
    operands = _operands(layer)
    if not operands or not layer.outputs:
        return 0
    results, weight = layer.outputs[0].shape, operands[1].shape
    if layer.kind == "gemm":  # the weight has the columns of the results, and their batches or none
        return prod(results) * prod(weight[-2:]) // max(1, results[-1])
    return prod(layer.inputs[0].shape if layer.kind == "deconv" else results) * prod(weight[1:])


def _operands(layer: Layer) -> tuple[Tensor, ...]:
    """The data and the weight of a product; nothing of other layers."""
    is_product = layer.kind in PRODUCTS or (layer.kind == "runtime_fusion" and "Corr" in layer.name)
    if not is_product or not layer.inputs:
        return ()
    rank = len(layer.inputs[0].shape)  # the first constant of that rank is the weight; another input may be added
    weights = [t for t in layer.constants if len(t.shape) == rank and prod(t.shape) > 1]
    others = [*weights, *(t for t in layer.inputs[1:] if len(t.shape) == rank)]
    return (layer.inputs[0], others[0]) if others else ()


def _width(tensor: Tensor) -> int:
    return _WIDTHS.get(tensor.type, _FULL)
