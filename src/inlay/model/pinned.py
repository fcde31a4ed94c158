"""Random operators that always draw the same numbers: without that, no two runs of a model can be compared.

A speech synthesizer adds noise to what it computes. Run twice on one sample, it makes two different sounds, and their
difference would be taken for what quantization does. Wherever outputs are computed to be compared, in float and in low
precision, the noise is therefore the same one: a table of numbers, repeated over the shape that was asked for. Ranges
are found with it, too. Files that are timed and delivered keep their random operators.
"""

from __future__ import annotations

import mmap
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from inlay.model.external import external_locations

if TYPE_CHECKING:
    import onnx_ir as ir

_TABLE = 8191
"""Numbers in a table: a prime, so that no axis of a tensor meets the same ones in each of its rows."""
_LEAST_OPSET = 11  # for Range
_ALLOWZERO_OPSET = 14

_TRAINING_OPSET = 15
"""For a Dropout that is left in training, of any type of floats."""

DRAWS = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
_MARKS = (b"Random", b"Bernoulli", b"Multinomial", b"Dropout")  # in files that hold one of them


def random_operators(graph: onnx.GraphProto) -> Mapping[str, int]:
    """How many of each operator that is pinned a graph holds, those of its subgraphs included."""
    idle = _false_constants(graph)
    return Counter(node.op_type for node in _nodes(graph) if _draws(node) or _trains(node, idle))


def random_note(model: ir.Model) -> str:
    """What people should know of a model that draws random numbers; empty where it does not."""
    standard = [node for node in model.graph.all_nodes() if node.domain == ""]
    found = Counter(node.op_type for node in standard if node.op_type in DRAWS)
    found += Counter("Dropout in training" for node in standard if node.op_type == "Dropout" and is_trained(node))
    if not found:
        return ""
    listed = f"the model draws random numbers ({', '.join(f'{count} {op}' for op, count in found.items())})"
    least = _TRAINING_OPSET if "Dropout in training" in found else _LEAST_OPSET
    if (model.opset_imports.get("") or 0) < least:
        return f"{listed} that differ in each run, of the float model as well: no accuracy can be told from them"
    return f"{listed}: ranges and accuracy are found with the same ones in each run; the written file draws its own"


def pinned(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with other nodes for its random ones, on which it is not changed; itself where it has none.

    A table is seeded by the name of the value, so that models of one origin draw the same.
    """
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < _LEAST_OPSET or not random_operators(model.graph):
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    _pin(found.graph, opset, _false_constants(found.graph))
    return found


def pinned_file(path: Path, twin: Path) -> bool:
    """Write the model in a file, pinned, to ``twin``; False where it draws nothing.

    External data is copied where ``twin`` has another folder, which is made.
    """
    if not _may_draw(path):
        return False
    model = onnx.load(path, load_external_data=False)
    found = pinned(model)
    if found is model:
        return False
    twin.parent.mkdir(parents=True, exist_ok=True)
    if twin.parent.resolve() != path.parent.resolve():
        for location in external_locations(model):
            (twin.parent / location).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path.parent / location, twin.parent / location)
    twin.write_bytes(found.SerializeToString())
    return True


def _may_draw(path: Path) -> bool:
    if not path.is_file() or not path.stat().st_size:
        return False  # whoever builds it says what is wrong
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(mark) >= 0 for mark in _MARKS)


def _draws(node: onnx.NodeProto) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in DRAWS


def _trains(node: onnx.NodeProto, idle: Set[str]) -> bool:
    """Whether a Dropout may drop something: it is not told that it is not in training."""
    told = node.input[2] if len(node.input) > 2 else ""
    return node.domain in ("", "ai.onnx") and node.op_type == "Dropout" and bool(told) and told not in idle


def _false_constants(graph: onnx.GraphProto) -> Set[str]:
    """Names of constants that are false, wherever they stand."""
    graphs = [graph, *(inner for node in _nodes(graph) for a in node.attribute for inner in (a.g, *a.graphs))]
    constants = [(t.name, t) for g in graphs for t in g.initializer]
    nodes = [n for n in _nodes(graph) if n.op_type == "Constant"]
    constants += [(n.output[0], a.t) for n in nodes for a in n.attribute if a.name == "value"]
    small = [(name, t) for name, t in constants if t.data_type == onnx.TensorProto.BOOL and not t.external_data]
    return {name for name, t in small if not numpy_helper.to_array(t).any()}


def is_trained(node: ir.Node) -> bool:
    """Whether a Dropout may be in training."""
    given = node.inputs[2] if len(node.inputs) > 2 else None
    known = None if given is None else given.const_value
    return given is not None and (known is None or bool(known.numpy().any()))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _pin(graph: onnx.GraphProto, opset: int, idle: Set[str]) -> None:
    nodes = []
    for node in graph.node:
        if _draws(node):
            nodes += _instead(node, opset)
        elif _trains(node, idle) and opset >= _TRAINING_OPSET:
            nodes += _dropped(node)
        else:
            nodes.append(node)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _pin(inner, opset, idle)
    if len(nodes) > len(graph.node):
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(kept)


class _Nodes:
    """Nodes that stand in place of one that draws, whose names begin with that of its output."""

    def __init__(self, name: str, opset: int) -> None:
        self.name, self.opset = name, opset
        self.made: list[onnx.NodeProto] = []

    def add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.made.append(helper.make_node(op_type, inputs, [output], f"{output}/node", **attributes))
        return output

    def step(self, op_type: str, inputs: list[str], what: str, **attributes: Any) -> str:
        return self.add(op_type, inputs, f"{self.name}/{what}", **attributes)

    def constant(self, what: str, array: np.ndarray) -> str:
        return self.step("Constant", [], what, value=numpy_helper.from_array(array))

    def drawn(self, shape: str, table: np.ndarray) -> str:
        """Numbers of ``table``, repeated over a shape."""
        begin, step, length = (self.constant(f"number{n}", np.array(n, np.int64)) for n in (0, 1, _TABLE))
        filled = shape
        if self.opset < _ALLOWZERO_OPSET:  # there, Reshape takes 0 for a dimension of its input: 1 is broadcast to it
            ones = self.step("Cast", [self.step("Equal", [shape, begin], "empty")], "ones", to=onnx.TensorProto.INT64)
            filled = self.step("Add", [shape, ones], "filled")
        size = self.step("ReduceProd", [filled], "size", keepdims=0)
        places = self.step("Mod", [self.step("Range", [begin, size, step], "range"), length], "places")
        numbers = self.step("Gather", [self.constant("table", table.astype(np.float32)), places], "numbers")
        if self.opset >= _ALLOWZERO_OPSET:
            return self.step("Reshape", [numbers, shape], "drawn", allowzero=1)
        return self.step("Expand", [self.step("Reshape", [numbers, filled], "shaped"), shape], "drawn")

    def table(self, is_normal: bool, first: float, second: float) -> np.ndarray:
        """Numbers of a normal distribution (mean, deviation), or a uniform one (low, high)."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        return rng.normal(first, second, _TABLE) if is_normal else rng.uniform(first, second, _TABLE)


def _instead(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    """Nodes that compute a table's numbers in the shape, and with the distribution, of a random node."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    nodes, floats = _Nodes(node.output[0], opset), onnx.TensorProto.FLOAT
    if node.op_type == "Multinomial":
        return _chosen(nodes, node.input[0], given)
    is_normal = "Normal" in node.op_type
    names, usual = (("mean", "scale") if is_normal else ("low", "high")), (0.0, 1.0)
    table = nodes.table(is_normal, *(given.get(n, u) for n, u in zip(names, usual, strict=True)))
    if node.input:
        shape = nodes.step("Shape", [node.input[0]], "shape")
    else:
        shape = nodes.constant("shape", np.array(given["shape"], np.int64))
    raw, dtype = nodes.drawn(shape, table), given.get("dtype", floats)
    if node.op_type == "Bernoulli":
        chance = nodes.step("Cast", [node.input[0]], "chance", to=floats)
        raw = nodes.step("Cast", [nodes.step("Less", [raw, chance], "chosen")], "hit", to=floats)
    if node.input and "dtype" not in given and opset >= 15:
        nodes.add("CastLike", [raw, node.input[0]], nodes.name)
    else:
        nodes.add("Cast", [raw], nodes.name, to=dtype)
    return nodes.made


def _chosen(nodes: _Nodes, scores: str, given: dict[str, Any]) -> list[onnx.NodeProto]:
    """Classes drawn by their logarithmic scores, shape (batch, classes): the first whose share of all is reached."""
    floats, whole = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    shares = nodes.step("Softmax", [nodes.step("Cast", [scores], "scores", to=floats)], "shares", axis=1)
    reached = nodes.step("CumSum", [shares, nodes.constant("axis", np.array(1, np.int64))], "reached")
    rows = nodes.step("Reshape", [reached, nodes.constant("rows", np.array([0, 1, -1], np.int64))], "by_draw")
    first = nodes.constant("first", np.array([0], np.int64))
    batch = nodes.step("Gather", [nodes.step("Shape", [scores], "shape"), first], "batch")
    draws = nodes.constant("draws", np.array([given.get("sample_size", 1), 1], np.int64))
    wanted = nodes.step("Concat", [batch, draws], "wanted", axis=0)
    drawn = nodes.drawn(wanted, nodes.table(False, 0.0, 1.0 - 1e-5))
    beyond = nodes.step("Cast", [nodes.step("Less", [drawn, rows], "beyond")], "is_beyond", to=whole)
    found = nodes.step("ArgMax", [beyond], "found", axis=2, keepdims=0)
    nodes.add("Cast", [found], nodes.name, to=given.get("dtype", onnx.TensorProto.INT32))
    return nodes.made


def _dropped(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A Dropout that always drops the same elements, where it is told to train."""
    nodes = _Nodes(node.output[0], _TRAINING_OPSET)
    floats, (data, ratio, training) = onnx.TensorProto.FLOAT, node.input
    share = (
        nodes.step("Cast", [ratio], "share", to=floats) if ratio else nodes.constant("share", np.array(0.5, np.float32))
    )
    drawn = nodes.drawn(nodes.step("Shape", [data], "shape"), nodes.table(False, 0.0, 1.0))
    enough = nodes.step("Not", [nodes.step("Less", [drawn, share], "below")], "enough")
    kept = nodes.step("Or", [enough, nodes.step("Not", [training], "idle")], "kept")
    one = nodes.constant("one", np.array(1.0, np.float32))
    larger = nodes.step("Div", [one, nodes.step("Sub", [one, share], "rest")], "larger")
    factor = nodes.step("Where", [training, larger, one], "factor")
    scaled = nodes.step("Mul", [nodes.step("Cast", [kept], "kept_as_ones", to=floats), factor], "scaled")
    nodes.add("Mul", [data, nodes.step("CastLike", [scaled, data], "like")], nodes.name)
    if len(node.output) > 1 and node.output[1]:
        nodes.add("Identity", [kept], node.output[1])
    return nodes.made
