"""Whether any convolution of a model gains by dynamic quantization, or by 16-bit activations, in ONNX Runtime.

    python -m benchmarks.conv_forms [--models DIR] [--only NAME ...] [--out DIR]

Each kind of convolution of a model (its shapes and attributes) is timed alone, in float, behind DynamicQuantizeLinear
as ConvInteger, and between Q/DQ pairs of 16 bits, in the same interleaved blocks. Where none gains, neither form can
rescue a layer that accuracy keeps in float.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import paired, render, rows, subjects
from inlay.data import input_specs, random_samples
from inlay.model.load import load

OUT = Path(__file__).parent / "out"
ONLY = ("yolox_nano", "fastestdet")
FORMS = ("dynamic", "uint16")
BLOCKS, PROCESSES = 10, 2
_SCALE, _ZERO = 2.0**-12, 1 << 15  # random inputs of a normal distribution fit into these 16 bits


def kinds(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, tuple[int, ...], np.ndarray]]:
    """One convolution of each kind: the node, the shape of its input, and its weight."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    values = [*inferred.graph.input, *inferred.graph.value_info]
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}
    weights = {t.name: t for t in inferred.graph.initializer}
    seen = set()
    for node in inferred.graph.node:
        if node.op_type != "Conv" or node.input[1] not in weights or not all(shapes.get(node.input[0], (0,))):
            continue
        weight = numpy_helper.to_array(weights[node.input[1]])
        attributes = sorted(a.SerializeToString() for a in node.attribute)
        key = (shapes[node.input[0]], weight.shape, *attributes)
        if key not in seen:
            seen.add(key)
            yield node, shapes[node.input[0]], weight


def forms(node: onnx.NodeProto, shape: tuple[int, ...], weight: np.ndarray) -> dict[str, onnx.ModelProto]:
    """Models of one convolution: in float, dynamic, and with activations of 16 bits."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    channels = (-1, 1, 1, 1)
    scales = (np.abs(weight).max(axis=(1, 2, 3)) / 127 + 1e-9).astype(np.float32)
    integers = np.rint(weight / scales.reshape(channels)).astype(np.int8)
    tensors = {"w": weight, "q": integers, "s": scales.reshape(1, -1, 1, 1)}
    tensors |= {"s16": np.float32(_SCALE), "z16": np.array(_ZERO, np.uint16)}
    nodes = {
        "float": [("Conv", "x w", "y", attributes)],
        "dynamic": [
            ("DynamicQuantizeLinear", "x", "xq xs xz", {}),
            ("ConvInteger", "xq q xz", "i", attributes),
            ("Cast", "i", "f", {"to": TensorProto.FLOAT}),
            ("Mul", "xs s", "t", {}),
            ("Mul", "f t", "y", {}),
        ],
        "uint16": [
            ("QuantizeLinear", "x s16 z16", "xq", {}),
            ("DequantizeLinear", "xq s16 z16", "xd", {}),
            ("Conv", "xd w", "y", attributes),
        ],
    }
    made = {}
    for name, steps in nodes.items():
        graph = helper.make_graph(
            [helper.make_node(op, i.split(), o.split(), **given) for op, i, o, given in steps],
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a, n) for n, a in tensors.items() if any(n in i.split() for _, i, _, _ in steps)],
        )
        made[name] = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return made


def row(node: onnx.NodeProto, shape: tuple[int, ...], weight: np.ndarray, folder: Path) -> dict[str, Any]:
    """One kind: microseconds in float, and what other forms gain over that."""
    files = {}
    for name, model in forms(node, shape, weight).items():
        files[name] = folder / f"{name}.onnx"
        onnx.save(model, files[name])
    samples = random_samples(input_specs(load(files["float"]).model), np.random.default_rng(0), 1)
    readings = paired.measure(files, samples, BLOCKS, PROCESSES)
    found = {name: readings.ratio("float", name) for name in FORMS if name not in readings.failed}
    return {"input": shape, "weight": weight.shape, "us": round(1e3 * readings.milliseconds("float"), 1), **found}


def main() -> None:
    """Time all kinds of some models, and name those that gain."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conv_forms", description=__doc__)
    parser.add_argument("--models", type=Path, default=subjects.default_models())
    parser.add_argument("--only", nargs="+", default=[*ONLY], metavar="NAME")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    lines = ["# Convolutions in other forms", "", render.machine(rows.facts(0.0)).partition("; search")[0] + ".", ""]
    lines += ["Ratios over float of the best kind of convolution, each timed alone.", ""]
    lines += ["| model | kinds | dynamic, best | median | 16 bits, best | median |", "|---|---|---|---|---|---|"]
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in subjects.chosen(options.models, options.only):
            subject = subjects.make(name, options.models, Path(scratch) / name)
            made = [row(*kind, Path(scratch)) for kind in kinds(onnx.load(subject.model))]
            found.append({"model": name, "kinds": made})
            cells = [name, str(len(made))]
            for form in FORMS:
                gains = [each[form] for each in made if form in each]
                cells += [render.ratio(max(gains, key=lambda g: g["value"])) if gains else "fails"]
                cells += [f"{np.median([g['value'] for g in gains]):.2f}x" if gains else ""]
            lines.append("| " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    rows.write_json(options.out / "conv_forms.json", {"machine": rows.facts(0.0), "rows": found})
    (options.out / "conv_forms.md").write_text("\n".join([*lines, ""]), encoding="utf8")


if __name__ == "__main__":
    main()
