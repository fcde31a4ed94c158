"""The ONNX model that lowering reads: static shapes, unique node names, and every constant an array.

The passes are those of :mod:`inlay.model.passes`; what is added here is that dynamic dimensions are bound, and that the
shape arithmetic, which is constant then, is folded. Nothing changes what the model computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from inlay.errors import ModelError, TargetError
from inlay.files import scratch
from inlay.model.graph import Graph, build_graph
from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.constants import drop_initializer_inputs, fold_constants, lift_constants
from inlay.model.passes.names import fix_names
from inlay.model.passes.steps import add_constant, is_standard
from inlay.model.reference import ConstantEvaluator
from inlay.tosa.blocks import undo_blocks
from inlay.tosa.early_pairs import add_early_pairs
from inlay.tosa.ir import Array

_FOLDING_ROUNDS = 8  # folding a shape computation can make further shapes known; real exports need three rounds at most

_LARGEST_DIM = 2**31 - 1

_MIN_IR_VERSION = 4  # up to IR version 3, shape inference overlooks initializers that are not graph inputs as well


@dataclass(frozen=True, eq=False)
class StaticModel:
    """An ONNX model with static shapes."""

    graph: Graph  # its nodes, shapes and consumers
    constants: Mapping[str, Array]  # arrays by value name (initializers and folded values)
    dtypes: Mapping[str, str]  # numpy's name of the element type, by value name
    # opsets, ir_version: what a model made of its nodes must declare
    opsets: tuple[onnx.OperatorSetIdProto, ...]
    ir_version: int
    functions: tuple[onnx.FunctionProto, ...]  # local functions that host nodes may call
    _nodes: Mapping[str, ir.Node]

    @classmethod
    def of(cls, work: ir.Model) -> StaticModel:
        """The model that :func:`static_ir` made, indexed. Raises ModelError where a dimension is too large for TOSA."""
        graph = build_graph(work)
        _require_sizes(graph)
        return cls(
            graph=graph,
            constants={
                n: v.const_value.numpy() for n, v in work.graph.initializers.items() if v.const_value is not None
            },
            dtypes={name: dtype.numpy().name for name, dtype in graph.dtypes.items() if _has_numpy(dtype)},
            opsets=tuple(helper.make_opsetid(domain, version) for domain, version in work.opset_imports.items()),
            ir_version=work.ir_version,
            functions=tuple(ir.serde.serialize_function(f) for f in work.functions.values()),
            _nodes={str(n.name): n for n in work.graph},
        )

    def shape(self, value: str) -> tuple[int, ...] | None:
        """Static shape of ``value``, or None where it is not known."""
        shape = self.graph.shape(value)
        if shape is None or any(d is None for d in shape):
            return None
        return tuple(int(d) for d in shape if d is not None)

    def proto(self, node: str) -> onnx.NodeProto:
        """The ONNX node of that name, for the parts that stay ONNX."""
        return ir.serde.serialize_node(self._nodes[node])


def static_model(model: onnx.ModelProto, bind: Mapping[str, int] | None = None) -> StaticModel:
    """``model`` with static shapes, unique node names and folded constants.

    Args:
        bind: sizes of named dynamic dimensions; every other one becomes 1.

    Raises:
        ModelError: the model is not valid, or its shapes contradict each other.
    """
    with _reading():
        return StaticModel.of(static_ir(model, bind))


def static_ir(model: onnx.ModelProto, bind: Mapping[str, int] | None = None) -> ir.Model:
    """What :func:`static_model` indexes; arguments and errors as there."""
    with _reading():
        work = ir.from_proto(model)
        work.ir_version = max(work.ir_version, _MIN_IR_VERSION)
        for step in (drop_initializer_inputs, lift_constants, fix_names):
            work, _ = step(work)
        _bind(work.graph, bind or {})
        work, _ = undo_blocks(_folded(work))
        return add_early_pairs(work)[0]


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except TargetError as error:
        raise ModelError(f"the shapes and constants of the model cannot be computed: {error}") from error
    except (ValueError, KeyError, TypeError, ir.serde.SerdeError) as error:
        raise ModelError(f"the model cannot be read: {error}") from error


def _require_sizes(graph: Graph) -> None:
    """Shapes are vectors of int32 in the TOSA 1.0 flatbuffer."""
    for value, shape in graph.shapes.items():
        if any(isinstance(dim, int) and dim > _LARGEST_DIM for dim in shape or ()):
            raise ModelError(f"{value} has a dimension of more than {_LARGEST_DIM}: {list(shape or ())}")


def _has_numpy(dtype: ir.DataType) -> bool:
    try:
        dtype.numpy()
    except TypeError:
        return False
    return True


def _bind(graph: ir.Graph, sizes: Mapping[str, int]) -> None:
    """Give every dynamic dimension of the inputs a size, and forget the shapes recorded with its symbols."""
    for value in graph.inputs:
        if not isinstance(value.type, ir.TensorType):
            raise ModelError(f"model input {value.name!r} is not a tensor")
        if value.shape is not None:
            value.shape = ir.Shape([_size(dim, sizes) for dim in value.shape])
    for node in graph:
        for value in node.outputs:
            value.shape = None
            if not value.is_graph_output():
                value.type = None


def _size(dim: int | ir.SymbolicDimProtocol, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim if dim > 0 else 1
    return sizes.get(dim.value or "", 1)


def _folded(model: ir.Model) -> ir.Model:
    """``model`` with its shapes inferred, and what depends on shapes and constants only computed."""
    with scratch() as folder:
        evaluate = ConstantEvaluator(folder)
        for _ in range(_FOLDING_ROUNDS):
            infer_shapes(model, strict=False)
            shapes = _fold_shapes(model.graph)
            model, values = fold_constants(model, evaluate)
            if not shapes + values:
                break
    return model


def _fold_shapes(graph: ir.Graph) -> int:
    """Replace each Shape of a value with a static shape by a constant; returns how many."""
    count = 0
    for node in list(graph):
        value, out = node.inputs[0] if node.inputs else None, node.outputs[0]
        if not is_standard(node, "Shape") or value is None or out.is_graph_output():
            continue
        if value.shape is None or not value.shape.is_static():
            continue
        start, end = (node.attributes.get_int(name, None) for name in ("start", "end"))
        dims = np.array(value.shape.numpy()[start:end], np.int64)
        out.replace_all_uses_with(add_constant(graph, str(out.name), dims))
        graph.remove(node, safe=True)
        count += 1
    return count
