"""What a rule is given: one ONNX node, the state of the lowering, and the steps that many rules share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context, multipliers_and_shifts
from inlay.tosa.ir import Array, Op, Shape, Tensor
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._windows import Window, window
from inlay.types import QParams


@dataclass(frozen=True)
class NodeContext:
    """One ONNX node and the state of the lowering; every operator that it adds belongs to the node."""

    context: Context
    node: Node

    # The node

    @property
    def out(self) -> str:
        """Name of the first output."""
        return self.node.outputs[0]

    @property
    def out_shape(self) -> Shape:
        """Static shape of the first output."""
        return self.context.shape(self.out)

    @property
    def output_qparams(self) -> QParams:
        """Qparams of the first output; see :meth:`Context.output_qparams`."""
        return self.context.output_qparams(self.out)

    def qparams_within(self, bound: float) -> QParams:
        """Qparams of the first output: those that its readers quantize it with, or 16 bits for ``bound``."""
        try:
            return self.output_qparams
        except Unsupported:
            if not (self.context.widens and math.isfinite(bound)):
                raise
            return self.context.wide_qparams(self.out, bound)

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute, or ``default`` where the node does not state it."""
        return self.node.attributes.get(name, default)

    def input_shape(self, index: int = 0) -> Shape:
        """Static shape of an input."""
        return self.context.shape(self.node.inputs[index])

    def quantized_input(self, index: int = 0, wide: bool = False) -> QuantizedTensor:
        """The exact int8 form of an input; see :meth:`Context.quantized_input`."""
        return self.context.quantized_input(self.node.inputs[index], wide)

    def constant_input(self, index: int) -> Array | None:
        """The array at an input slot: None where the slot is empty, Unsupported where it is not constant."""
        return self.context.constant_input(self.node, index)

    def integers(self, index: int) -> list[int] | None:
        """The integers at an input slot; None where it is empty, Unsupported where it is not constant."""
        given = self.constant_input(index)
        return None if given is None else [int(v) for v in given.reshape(-1)]

    def axes(self, slot: int, rank: int) -> tuple[int, ...] | None:
        """The axes that the node names, in its attribute or (newer opsets) at input ``slot``; None when absent."""
        axes = self.attribute("axes", None)
        axes = self.integers(slot) if axes is None else axes
        return None if axes is None else tuple(int(a) % rank for a in axes)

    @property
    def reads_extra_outputs(self) -> bool:
        """Whether anything reads an output of the node besides the first."""
        return any(value and self.context.graph.consumers(value) for value in self.node.outputs[1:])

    # The integer graph

    def shape(self, tensor: str) -> Shape:
        """Static shape of a tensor."""
        return self.context.builder.shape(tensor)

    def tensor(self, name: str) -> Tensor:
        """A tensor as declared."""
        return self.context.builder.tensors[name]

    def constant(self, what: str, value: Array) -> str:
        """Declare a constant."""
        return self.context.builder.constant(f"{self.node.name}/{what}", value)

    def add(
        self,
        kind: type[Op],
        inputs: str | Sequence[str],
        step: str = "",
        dtype: str | None = None,
        shape: Shape | None = None,
        qparams: QParams | None = None,
        base: str = "",
        **attributes: Any,
    ) -> str:
        """Append an operator of the node, and return the name of its output.

        Args:
            step: names the output ``<node>/<step>``; without it and ``base``, it is named like the node's output.
            dtype: element type of the output; without it, type and qparams are those of the first input.
            shape: of the output; without it, that of the first input.
            base: names the output instead of ``step``.
        """
        names = [inputs] if isinstance(inputs, str) else inputs
        first = self.tensor(names[0])
        if dtype is None:
            dtype, qparams = first.dtype, first.qparams
        base = base or (f"{self.node.name}/{step}" if step else self.out)
        shape = first.dims if shape is None else shape
        return self.context.builder.add(kind, self.node.name, names, base, dtype, shape, qparams, **attributes)

    def reshape(self, tensor: str, shape: Sequence[int], step: str = "", base: str = "") -> str:
        """``tensor`` with other dimensions (itself when they are the same); named as by :meth:`add`."""
        if self.shape(tensor) == tuple(shape):
            return tensor
        return self.add(ir.Reshape, tensor, step, shape=tuple(shape), base=base)

    def aligned(self, tensor: str, rank: int) -> str:
        """``tensor`` with leading axes of size 1 up to ``rank``."""
        return self.reshape(tensor, expand_rank(self.shape(tensor), rank), base=f"{tensor}/aligned")

    def transposed(self, tensor: str, perm: tuple[int, ...], step: str = "") -> str:
        """``tensor`` with its axes permuted."""
        if perm == tuple(range(len(perm))):
            return tensor
        dims = self.shape(tensor)
        return self.add(ir.Transpose, tensor, step, shape=tuple(dims[p] for p in perm), perm=perm)

    def sliced(self, tensor: str, ranges: Mapping[int, tuple[int, int]], step: str = "", base: str = "") -> str:
        """``ranges[axis] = (start, size)`` elements of the axes given, all of the others."""
        dims = self.shape(tensor)
        start = tuple(ranges.get(i, (0, d))[0] for i, d in enumerate(dims))
        size = tuple(ranges.get(i, (0, d))[1] for i, d in enumerate(dims))
        if size == dims:
            return tensor
        return self.add(ir.Slice, tensor, step, shape=size, base=base, start=start, size=size)

    def binary(self, fn: str, a: str, b: str, step: str = "") -> str:
        """An operator of two tensors of one type and rank."""
        shape = np.broadcast_shapes(self.shape(a), self.shape(b))
        return self.add(ir.Binary, [a, b], step or fn, self.tensor(a).dtype, shape, fn=fn)

    def reduce(self, fn: str, tensor: str, axis: int) -> str:
        """sum, max or min over one axis, which stays with size 1."""
        return self.add(ir.Reduce, tensor, fn, shape=with_size(self.shape(tensor), axis, 1), fn=fn, axis=axis)

    def window(self, kernel: Sequence[int]) -> Window:
        """The window of a Conv or pooling node over its first input."""
        return window(self.node, self.input_shape()[2:], kernel)

    def image(self, tensor: str, size: tuple[int, int] | None = None) -> str:
        """``tensor`` as [N,C,H,W] ([N,C,W] gets height 1), or the first ``size`` rows and columns of it."""
        shape = self.shape(tensor)
        if len(shape) != 4:
            tensor = self.reshape(tensor, (*shape[:2], 1, *shape[2:]), base=f"{tensor}/2d")
        ranges = {} if size is None else {2: (0, size[0]), 3: (0, size[1])}
        return self.sliced(tensor, ranges, base=f"{tensor}/crop")

    def conv2d(
        self,
        tensor: str,
        weights: Array,
        bias: Array,
        win: Window,
        in_zp: int = 0,
        w_zp: int = 0,
        depthwise: bool = False,
        step: str = "acc",
    ) -> str:
        """Sums [N,O,H,W] of a convolution with weights [O,I,kh,kw]: int32, or float32 where the bias is."""
        return self.add(
            ir.Conv2d, [tensor, self.constant("weight", weights), self.constant("bias", bias)], step, bias.dtype.name,
            (self.shape(tensor)[0], weights.shape[0], *win.out), pads=win.pads, strides=win.strides,
            dilations=win.dilations, depthwise=depthwise, in_zp=in_zp, w_zp=w_zp,
        )  # fmt: skip

    def rescale(
        self,
        tensor: str,
        factors: Sequence[float],
        to: QParams,
        step: str = "out",
        base: str = "",
        in_zp: int = 0,
        axis: int | None = None,
    ) -> str:
        """RESCALE to int8 or int16 with the qparams ``to``, by one real factor or by one per channel of ``axis``."""
        multiplier, shift = multipliers_and_shifts(factors)
        return self.add(
            ir.Rescale, tensor, step, to.qtype.value, None, to, base, multiplier=multiplier, shift=shift, in_zp=in_zp,
            out_zp=to.zero_point[0], axis=axis if len(factors) > 1 else None,
        )  # fmt: skip

    def requantize(self, x: QuantizedTensor, to: QParams, base: str) -> str:
        """A quantized tensor with the qparams ``to``: the same one, or a RESCALE of it."""
        if x.known_qparams == to:
            return x.tensor
        return self.rescale(x.tensor, [x.scale / to.scale[0]], to, base=base, in_zp=x.zp)

    def to_int32(self, tensor: str, in_zp: int = 0, factor: float = 1.0) -> str:
        """``(tensor − in_zp)·factor`` as int32."""
        multiplier, shift = multipliers_and_shifts([factor])
        return self.add(
            ir.Rescale, tensor, "", "int32", base=f"{tensor}/wide", multiplier=multiplier, shift=shift, in_zp=in_zp
        )

    # Outputs

    def set_output(self, tensor: str, qparams: QParams) -> None:
        """Record ``tensor``, in the output's own shape, as the node's quantized output."""
        if math.prod(self.out_shape) != math.prod(self.shape(tensor)):
            # Shape inference and ONNX Runtime differ on a last pooling window that would start in the padding.
            raise Unsupported(f"its declared shape {list(self.out_shape)} is not the one it computes")
        self.context.quantized[self.out] = QuantizedTensor(self.reshape(tensor, self.out_shape), qparams)

    def set_rescaled(self, acc: str, unit: float, to: QParams, base: str = "") -> None:
        """Record int32 values in steps of ``unit`` as the node's quantized output, by one RESCALE."""
        self.set_output(self.rescale(acc, [unit / to.scale[0]], to, base=base), to)

    def set_moved(self, x: QuantizedTensor, tensor: str, index: int = 0) -> None:
        """Record ``tensor``, which data movement made of ``x``, as an output of the node.

        It is quantized like ``x``, an integer of the ONNX model, or (in float) float.
        """
        value = self.node.outputs[index]
        if self.tensor(tensor).dtype == "float32":
            self.context.unquantized[value] = tensor
        else:
            self.context.quantized[value] = replace(x, tensor=tensor)


def representable(real: float, qparams: QParams) -> bool:
    """Whether a number is one of the values that ``qparams`` stand for."""
    steps = real / qparams.scale[0] + qparams.zero_point[0]
    return not outside(real, qparams) and steps == round(steps)


def outside(real: float, qparams: QParams) -> bool:
    """Whether a number is smaller or larger than every value that ``qparams`` stand for."""
    steps = real / qparams.scale[0] + qparams.zero_point[0]
    return not qparams.qtype.qmin <= steps <= qparams.qtype.qmax


def expand_rank(shape: Shape, rank: int) -> Shape:
    """``shape`` with leading ones up to ``rank``, as ONNX broadcasts it."""
    return (1,) * (rank - len(shape)) + shape


def with_size(dims: Sequence[int], axis: int, size: int) -> Shape:
    """``dims`` with another size along one axis."""
    return tuple(size if i == axis else d for i, d in enumerate(dims))
