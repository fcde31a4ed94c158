"""What kernels of a GPU take by its data sheet: the longer of moving their bytes and of their products, and a launch.

An estimate, no measurement: caches, the shapes that suit a kernel and what the driver fuses as it loads an engine are
left out. Candidates are compared by it where no GPU is at hand; how fast a model is only a GPU can tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from inlay.targets.tensorrt.reports import PRODUCTS, Layer, Tensor

_LAUNCH_US = 2.0  # from one kernel of a graph of CUDA to the next, where they are short
_WIDTHS = {"int4": 4, "float4": 4, "int8": 8, "float8": 8, "bool": 8, "float16": 16, "bfloat16": 16, "int64": 64}
_FULL = 32  # bits of all other types


@dataclass(frozen=True)
class Gpu:
    """A GPU of a compute capability.

    Attributes:
        like: its name.
        bandwidth: of its memory, GB/s.
        tera_ops: products and sums of dense matrices, 10^12 in a second (a multiply-accumulate is two), by the bits of
            the narrower operand.
    """

    like: str
    bandwidth: float
    tera_ops: dict[int, float]

    def __str__(self) -> str:
        rates = ", ".join(f"{bits} bits {rate:g}" for bits, rate in sorted(self.tera_ops.items()))
        return f"{self.bandwidth:g} GB/s; 10^12 operations a second: {rates}; {_LAUNCH_US:g} us a kernel"


# From NVIDIA's architecture papers: dense, 16 bits summed in 32; 32 bits are TF32 where there is that, which builders
# allow by default. SM121 by the ratios of SM120 from the figure for 4 bits.
GPUS = {
    "SM75": Gpu("GeForce RTX 2080 Ti", 616, {32: 13.4, 16: 53.8, 8: 215, 4: 430}),
    "SM80": Gpu("A100 40 GB", 1555, {32: 156, 16: 312, 8: 624, 4: 624}),
    "SM86": Gpu("GeForce RTX 3080", 760, {32: 29.8, 16: 59.5, 8: 238, 4: 238}),
    "SM89": Gpu("GeForce RTX 4090", 1008, {32: 82.6, 16: 165, 8: 661, 4: 661}),
    "SM120": Gpu("GeForce RTX 5090", 1792, {32: 105, 16: 210, 8: 838, 4: 1676}),
    "SM121": Gpu("GB10", 273, {32: 31, 16: 62, 8: 250, 4: 500}),
}


def milliseconds(layer: Layer, gpu: Gpu) -> float:
    """The estimate for one layer of an engine, as often as it runs in an inference."""
    moved = sum(prod(t.shape) * _width(t) for t in (*layer.inputs, *layer.constants, *layer.outputs))
    seconds = moved / 8 / (gpu.bandwidth * 1e9)
    if products(layer):
        rate = gpu.tera_ops[max(min(_width(t), _FULL) for t in _operands(layer))]
        seconds = max(seconds, 2 * products(layer) / (rate * 1e12))
    return layer.runs * (1e3 * seconds + 1e-3 * _LAUNCH_US)


def products(layer: Layer) -> int:
    """Multiply-accumulates of one run: 0 of what multiplies no matrices."""
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
