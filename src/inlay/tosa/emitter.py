"""The TOSA graph under construction: tensors with their layouts, constants, and operators in ``tosa_serializer``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inlay.tosa import layout
from inlay.tosa.extras import require
from inlay.tosa.ir import Array, Shape, Tensor
from inlay.tosa.layout import Layout


@dataclass(frozen=True)
class TosaTensor:
    """One input or output of a flatbuffer."""

    tensor: str  # name of the integer graph's tensor
    dtype: str  # element type (uint8 is stored in a TOSA INT8 tensor, bit for bit)
    shape: Shape  # stored dimensions
    permutation: Layout  # stored axis `i` is ONNX axis `permutation[i]`


class Emitter:
    """Collects operators in ``tosa_serializer``; knows each tensor's layout and writes equal constants once."""

    def __init__(
        self, tensors: Mapping[str, Tensor], constants: Mapping[str, Array], layouts: Mapping[str, Layout]
    ) -> None:
        self.ts: Any = require("tosa_serializer")
        self.tensors = tensors
        self.constants = constants
        self._layouts = dict(layouts)
        self.serializer: Any = self.ts.TosaSerializer(
            "", self.ts.ConstMode.EMBED, targetMajor=1, targetMinor=0, targetPatch=0, targetDraft=False
        )
        self.source = ""
        self.sources: dict[str, str] = {}
        self._written: dict[str, Any] = {}
        self._consts: dict[tuple[str, Shape, bytes], str] = {}
        self._types = {
            "int8": self.ts.DType.INT8,
            "uint8": self.ts.DType.INT8,
            "int16": self.ts.DType.INT16,
            "int32": self.ts.DType.INT32,
            "float32": self.ts.DType.FP32,
            "bool": self.ts.DType.BOOL,
        }

    def layout(self, name: str) -> Layout:
        """Layout of a tensor that is not constant."""
        if name not in self._layouts:
            self._layouts[name] = layout.identity(len(self.tensors[name].dims))
        return self._layouts[name]

    def stored(self, name: str) -> Shape:
        """Stored dimensions of a tensor that is not constant."""
        return layout.stored_shape(self.tensors[name].dims, self.layout(name))

    def boundary(self, name: str) -> TosaTensor:
        """How ``name`` is stored as an input or output of the flatbuffer."""
        return TosaTensor(name, self.tensors[name].dtype, self.stored(name), self.layout(name))

    def graph_input(self, name: str) -> None:
        """Declare an input."""
        tensor = self.ts.TosaSerializerTensor(name, list(self.stored(name)), self._types[self.tensors[name].dtype])
        self._written[name] = self.serializer.addInputTensor(tensor) or tensor

    def graph_output(self, name: str) -> None:
        """Declare an output, which an operator has computed."""
        self.serializer.addOutputTensor(self._written[name])

    def const(self, value: Array, dtype: str | None = None) -> str:
        """A constant with the given values; equal ones are written once."""
        dtype = dtype or value.dtype.name
        data = np.ascontiguousarray(value.astype("int8" if dtype == "uint8" else dtype))
        key = (dtype, data.shape, data.tobytes())
        if key not in self._consts:
            name = f"const{len(self._consts)}"
            self.serializer.addConst(list(data.shape), self._types[dtype], data.reshape(-1), name)
            self._consts[key] = name
        return self._consts[key]

    def shape(self, values: Sequence[int]) -> str:
        """A constant of TOSA's shape type."""
        key = ("shape", (len(values),), np.array(values, np.int64).tobytes())
        if key not in self._consts:
            name = f"shape{len(self._consts)}"
            self.serializer.addConst([len(values)], self.ts.DType.SHAPE, [int(v) for v in values], name)
            self._consts[key] = name
        return self._consts[key]

    def read(self, name: str, like: str) -> str:
        """An operand: a constant is stored in the layout that ``like`` has, where the ranks agree."""
        if name not in self.constants:
            return str(self._written[name].name)
        value = self.constants[name]
        order = self.layout(like)
        if value.ndim == len(order):
            value = value.transpose(order)
        return self.const(value, self.tensors[name].dtype)

    def operator(self, op: str, inputs: Sequence[str], out: str, *attributes: Any) -> None:
        """Append a TOSA operator that computes the integer graph's tensor ``out``."""
        self._written[out] = self._append(op, inputs, self.stored(out), self.tensors[out].dtype, *attributes)

    def step(self, op: str, inputs: Sequence[str], shape: Shape, dtype: str, *attributes: Any) -> str:
        """Append a TOSA operator with a result of its own, and return the result's name."""
        return str(self._append(op, inputs, shape, dtype, *attributes).name)

    def _append(self, op: str, inputs: Sequence[str], shape: Shape, dtype: str, *attributes: Any) -> Any:
        out = self.serializer.addIntermediate(list(shape), self._types[dtype])
        self.sources[str(out.name)] = self.source
        attribute = self.ts.TosaSerializerAttribute()
        # MAX_POOL2D has a MaxPool2dAttribute; only MATMUL has its words written together.
        name = "MatMul" if op == "MATMUL" else op.title().replace("_", "").replace("2D", "2d")
        getattr(attribute, f"{name}Attribute")(*attributes)
        self.serializer.addOperator(getattr(self.ts.Op, op), list(inputs), [out.name], attribute)
        return out
