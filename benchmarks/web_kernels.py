"""Which kernels of ONNX Runtime Web gain by 8 bits: chains of one operator, in float and quantized, in Node.

    python -m benchmarks.web_kernels [--only KIND ...] [--out DIR]

Needs ``inlay targets --install ort-web``. Each model is the same operator a few times in a row, so that what happens at
its ends counts little: quantized, integers flow from one to the next, as within a quantized network. Float and
quantized models are timed in the same interleaved blocks. Together with the share of each kind in a network this says
whether any placement could gain there.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import inlay
from benchmarks import paired, render, rows
from inlay.data import input_specs, random_samples
from inlay.errors import InlayError
from inlay.model.load import load
from inlay.targets.base import TargetSpec
from inlay.targets.registry import create

OUT = Path(__file__).parent / "out"
TARGET = TargetSpec("ort-web", {"threads": 1})
RECIPES = ("full-int8", "dynamic")
BLOCKS, PROCESSES, LENGTH = 12, 2, 4
Node = tuple[str, list[str], dict[str, Any]]
"""Operator, constants that it reads behind its input, attributes."""


class Chain:
    """A model of one operator, several times.

    Args:
        shape: of input and output.
        operator: makes one node: given the chain, to which it adds constants.
        opset: of the model.
    """

    def __init__(self, shape: Sequence[int], operator: Callable[[Chain], Node], opset: int = 17) -> None:
        self.rng, self.constants = np.random.default_rng(0), list[onnx.TensorProto]()
        last, nodes = "input", list[onnx.NodeProto]()
        for number in range(LENGTH):
            kind, constants, attributes = operator(self)
            inputs = [last, *(each or last for each in constants)]
            nodes.append(helper.make_node(kind, inputs, [f"value_{number}"], f"node_{number}", **attributes))
            last = f"value_{number}"
        ends = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, None if n == last else shape) for n in ("input", last)
        ]
        graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], self.constants)
        self.model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)

    def weight(self, *shape: int) -> str:
        """A constant of normal numbers that keeps sizes what they are."""
        fan = max(1, int(np.prod(shape[1:])))
        array = self.rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(fan))
        self.constants.append(numpy_helper.from_array(array, f"constant_{len(self.constants)}"))
        return self.constants[-1].name


def conv(channels: int, rows: int, window: int, group: int = 1) -> Chain:
    """Convolutions that keep the shape."""

    def operator(chain: Chain) -> Node:
        weight = chain.weight(channels, channels // group, window, window)
        return "Conv", [weight, chain.weight(channels)], {"pads": [window // 2] * 4, "group": group}

    return Chain((1, channels, rows, rows), operator)


def product(rows: int, width: int) -> Chain:
    """Matrix products with a constant."""
    return Chain((rows, width), lambda chain: ("MatMul", [chain.weight(width, width)], {}))


def plain(kind: str, channels: int, rows: int, constants: Sequence[str] = (), **attributes: Any) -> Chain:
    """An operator without weights; an empty name among ``constants`` is the input again."""
    return Chain((1, channels, rows, rows), lambda chain: (kind, [*constants], attributes))


KINDS: dict[str, Callable[[], Chain]] = {
    "Conv 3x3, 32 channels, 56x56": lambda: conv(32, 56, 3),
    "Conv 3x3, 64 channels, 28x28": lambda: conv(64, 28, 3),
    "Conv 3x3, 256 channels, 14x14": lambda: conv(256, 14, 3),
    "Conv 1x1, 32 channels, 112x112": lambda: conv(32, 112, 1),
    "Conv 1x1, 96 channels, 28x28": lambda: conv(96, 28, 1),
    "Conv 1x1, 512 channels, 7x7": lambda: conv(512, 7, 1),
    "depthwise 3x3, 32 channels, 112x112": lambda: conv(32, 112, 3, 32),
    "depthwise 3x3, 192 channels, 28x28": lambda: conv(192, 28, 3, 192),
    "depthwise 5x5, 96 channels, 14x14": lambda: conv(96, 14, 5, 96),
    "MatMul, 1 row of 1024": lambda: product(1, 1024),
    "MatMul, 32 rows of 256": lambda: product(32, 256),
    "MatMul, 128 rows of 384": lambda: product(128, 384),
    "Add, 64 channels, 56x56": lambda: plain("Add", 64, 56, [""]),
    "Mul, 64 channels, 56x56": lambda: plain("Mul", 64, 56, [""]),
    "Sigmoid, 64 channels, 56x56": lambda: plain("Sigmoid", 64, 56),
    "MaxPool 3x3, 64 channels, 56x56": lambda: plain("MaxPool", 64, 56, kernel_shape=[3, 3], pads=[1] * 4),
    "AveragePool 3x3, 64 channels, 56x56": lambda: plain("AveragePool", 64, 56, kernel_shape=[3, 3], pads=[1] * 4),
}


def row(kind: str, folder: Path) -> dict[str, Any]:
    """One kind in float and quantized: milliseconds of one operator, and speed-ups over float."""
    path = folder / "float.onnx"
    onnx.save(KINDS[kind]().model, path)
    files, notes = {"float": path}, {}
    for recipe in RECIPES:
        made = folder / f"{recipe}.onnx"
        try:
            done = inlay.quantize(path, made, target=TARGET, recipe=recipe)
        except InlayError as error:
            notes[recipe] = str(error)
            continue
        if done.ports:
            files[recipe] = made
    samples = random_samples(input_specs(load(path).model), np.random.default_rng(0), 1)
    readings = paired.measure(files, samples, BLOCKS, PROCESSES, targets=dict.fromkeys(files, TARGET))
    return {
        "kind": kind,
        "float_ms": readings.milliseconds("float") / LENGTH,
        "over_float": {name: readings.ratio("float", name) for name in files if name != "float"},
        "notes": notes,
    }


def text(table: dict[str, Any]) -> str:
    """The table as Markdown."""
    lines = [
        "# Kernels of ONNX Runtime Web",
        "",
        f"{', '.join(f'{k} {v}' for k, v in table['target'].items())}. Chains of {LENGTH} equal operators in Node; "
        "speed-ups over float are paired ratios with 95 % intervals. Empty: the recipe quantizes nothing there.",
        "",
        "| operator | float, each | " + " | ".join(RECIPES) + " |",
        "|---|---|" + "---|" * len(RECIPES),
    ]
    for each in table["rows"]:
        found = " | ".join(render.ratio(each["over_float"].get(recipe)) for recipe in RECIPES)
        lines.append(f"| {each['kind']} | {each['float_ms']:.3f} ms | {found} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure all kinds, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.web_kernels", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="kinds whose names begin so")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    found = []
    for kind in KINDS:
        if options.only and not kind.startswith(tuple(options.only)):
            continue
        with tempfile.TemporaryDirectory() as name:
            found.append(row(kind, Path(name)))
        shown = ", ".join(f"{recipe} {render.ratio(each)}" for recipe, each in found[-1]["over_float"].items())
        print(f"{kind}: {found[-1]['float_ms']:.3f} ms; {shown}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    rows.write_table(
        options.out, "web_kernels", {"target": dict(create(TARGET).fingerprint().facts), "rows": found}, text
    )


if __name__ == "__main__":
    main()
