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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from inlay.model.store import external_locations

if TYPE_CHECKING:
    import onnx_ir as ir

_TABLE = 8191
"""Numbers in a table: a prime, so that no axis of a tensor meets the same ones in each of its rows."""
_LEAST_OPSET = 11  # for Range
_ALLOWZERO_OPSET = 14

_DRAWS = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli")
_RANDOM = (*_DRAWS, "Multinomial")
_MARKS = (b"Random", b"Bernoulli")  # in files that hold one of them


def random_operators(graph: onnx.GraphProto) -> Mapping[str, int]:
    """How many of each operator that is pinned a graph holds, those of its subgraphs included."""
    return Counter(node.op_type for node in _nodes(graph) if _draws(node))


def random_note(model: ir.Model) -> str:
    """What people should know of a model that draws random numbers; empty where it does not."""
    found = Counter(node.op_type for node in model.graph.all_nodes() if node.domain == "" and node.op_type in _RANDOM)
    if not found:
        return ""
    listed = f"the model draws random numbers ({', '.join(f'{count} {op}' for op, count in found.items())})"
    if (model.opset_imports.get("") or 0) < _LEAST_OPSET or set(found) - set(_DRAWS):
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
    _pin(found.graph, opset)
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
    return node.domain in ("", "ai.onnx") and node.op_type in _DRAWS


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _pin(graph: onnx.GraphProto, opset: int) -> None:
    nodes = []
    for node in graph.node:
        nodes += _instead(node, opset) if _draws(node) else [node]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _pin(inner, opset)
    if len(nodes) > len(graph.node):
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(kept)


def _instead(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    """Nodes that compute a table's numbers in the shape, and with the distribution, of a random node."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    name = node.output[0]
    made: list[onnx.NodeProto] = []

    def add(op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        made.append(helper.make_node(op_type, inputs, [output], f"{output}/node", **attributes))
        return output

    def constant(what: str, array: np.ndarray) -> str:
        return add("Constant", [], f"{name}/{what}", value=numpy_helper.from_array(array))

    def drawn(output: str) -> str:
        rng, low, high = np.random.default_rng(zlib.crc32(name.encode())), given.get("low", 0.0), given.get("high", 1.0)
        if "Normal" in node.op_type:
            table = rng.normal(given.get("mean", 0.0), given.get("scale", 1.0), _TABLE)
        else:
            table = rng.uniform(low, high, _TABLE)
        if node.input:
            shape = add("Shape", [node.input[0]], f"{name}/shape")
        else:
            shape = constant("shape", np.array(given["shape"], np.int64))
        begin, step, length = (constant(f"number{n}", np.array(n, np.int64)) for n in (0, 1, _TABLE))
        filled = shape
        if opset < _ALLOWZERO_OPSET:  # there, Reshape takes 0 for a dimension of its input: 1 is broadcast to it
            empty = add("Equal", [shape, begin], f"{name}/empty")
            ones = add("Cast", [empty], f"{name}/ones", to=onnx.TensorProto.INT64)
            filled = add("Add", [shape, ones], f"{name}/filled")
        size = add("ReduceProd", [filled], f"{name}/size", keepdims=0)
        places = add("Mod", [add("Range", [begin, size, step], f"{name}/range"), length], f"{name}/places")
        numbers = add("Gather", [constant("table", table.astype(np.float32)), places], f"{name}/numbers")
        if opset >= _ALLOWZERO_OPSET:
            return add("Reshape", [numbers, shape], output, allowzero=1)
        return add("Expand", [add("Reshape", [numbers, filled], f"{name}/shaped"), shape], output)

    like = bool(node.input) and "dtype" not in given
    dtype = onnx.TensorProto.FLOAT if node.op_type == "Bernoulli" else given.get("dtype", onnx.TensorProto.FLOAT)
    raw = drawn(f"{name}/drawn")
    if node.op_type == "Bernoulli":
        chance = add("Cast", [node.input[0]], f"{name}/chance", to=onnx.TensorProto.FLOAT)
        raw = add("Cast", [add("Less", [raw, chance], f"{name}/chosen")], f"{name}/hit", to=onnx.TensorProto.FLOAT)
        dtype = given.get("dtype", onnx.TensorProto.FLOAT)
    if like and opset >= 15:
        add("CastLike", [raw, node.input[0]], name)
    else:
        add("Cast", [raw], name, to=dtype)
    return made
