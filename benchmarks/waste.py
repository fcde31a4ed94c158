"""Is priced waste true? Q/DQ pairs for nothing are removed, and what that saves is set beside their price.

A float model gets a Q/DQ pair at one of its large values, which nothing reads on integers, as quantizers leave them
around operators that have no kernel in INT8. ``inlay explain`` prices it; where it takes a good share of the time, it
is removed, and the files with and without it are timed in the same interleaved blocks of other processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import inlay
from benchmarks import paired
from benchmarks.reasons import at_opset, first
from benchmarks.subjects import Subject
from inlay.data import input_specs, read_samples
from inlay.explanation.explanation import Waste
from inlay.explanation.removal import without_pair
from inlay.model.load import load

SHARE = 0.03  # of the time: what is priced lower drowns in the noise of the whole
VALUES = 4  # of each model, the largest: each gets a pair in a file of its own, for two pairs can make an operator INT8
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # a pair behind one also keeps it from taking in its activation
BLOCKS, PROCESSES = 16, 2
BUDGET_S = 20.0  # of each explanation
LEAST, LARGEST = 0.5, 1.5  # of the price: what the removal may save


def large_values(graph: ir.Graph, count: int = VALUES) -> list[str]:
    """The ``count`` largest float values that one node writes, no product, and another reads."""
    sizes = {
        str(value.name): int(np.prod([d for d in value.shape if isinstance(d, int)]))
        for node in graph
        for value in node.outputs
        if value.dtype == ir.DataType.FLOAT and value.shape is not None and value.uses() and not value.is_graph_output()
        if node.op_type not in PRODUCTS and {use.node.op_type for use in value.uses()} & {*PRODUCTS, "Add", "Concat"}
    }
    return sorted(sizes, key=lambda name: -sizes[name])[:count]


def with_pair(model: ir.Model, name: str) -> None:
    """Put a Q/DQ pair at the value ``name``."""
    graph = model.graph
    value = next(v for node in graph for v in node.outputs if v.name == name)
    scale, zero = (
        ir.Value(name=f"pair_{what}", const_value=ir.tensor(data, name=f"pair_{what}"))
        for what, data in (("scale", np.array(0.05, np.float32)), ("zero", np.array(128, np.uint8)))
    )
    graph.initializers["pair_scale"], graph.initializers["pair_zero"] = scale, zero
    readers, producer = list(value.uses()), value.producer()
    assert producer is not None
    quantize = ir.node("QuantizeLinear", [value, scale, zero], name="pair_q")
    dequantize = ir.node("DequantizeLinear", [quantize.outputs[0], scale, zero], name="pair_dq")
    graph.insert_after(producer, [quantize, dequantize])
    for reader, index in readers:
        reader.replace_input_with(index, dequantize.outputs[0])


def row(subject: Subject, work: Path) -> dict[str, Any]:
    """The price of pairs of one model, and what their removal saves."""
    work.mkdir(parents=True, exist_ok=True)
    model = onnx.shape_inference.infer_shapes(at_opset(onnx.load(subject.model)), data_prop=True)
    files, priced = {}, {}
    for n, value in enumerate(large_values(ir.from_proto(model).graph)):
        given, removed = work / f"with_{n}.onnx", work / f"without_{n}.onnx"
        made = ir.from_proto(model)
        with_pair(made, value)
        ir.save(made, given)
        found = inlay.explain(given, data=first(subject.samples), budget=BUDGET_S)
        pairs = [w for w in found.waste if w.kind == "idle-pair" and w.value == value and w.share > SHARE]
        if not pairs:
            continue
        without = ir.load(given)
        without_pair(without, value)
        ir.save(without, removed)
        files.update({f"with {value}": given, f"without {value}": removed})
        priced[value] = pairs[0]
    if not priced:
        return {"model": subject.name, "pairs": []}
    samples = read_samples(subject.samples, input_specs(load(subject.model).model))
    readings = paired.measure(files, samples, BLOCKS, PROCESSES)
    pairs_of = [_judged(value, pair, readings) for value, pair in priced.items()]
    return {"model": subject.name, "pairs": pairs_of}


def _judged(value: str, pair: Waste, readings: paired.Readings) -> dict[str, Any]:
    ratio, ms = readings.ratio(f"with {value}", f"without {value}"), readings.milliseconds(f"with {value}")
    saved = {key: ms * (1.0 - 1.0 / ratio[key]) for key in ("value", "low", "high")}
    return {
        "value": value,
        "latency_ms": ms,
        "share": pair.share,
        "price_ms": pair.cost_ms,
        "saved_ms": saved,
        "of_price": {key: each / pair.cost_ms for key, each in saved.items()},
    }


def true(pair: Mapping[str, Any]) -> bool:
    """Whether the removal saves what the price says."""
    return bool(LEAST <= pair["of_price"]["value"] <= LARGEST)


def line(row: Mapping[str, Any]) -> str:
    """A row in a few words."""
    return ", ".join(f"{p['of_price']['value']:.2f}" for p in row["pairs"]) + " of the price"


def markdown(table: Mapping[str, Any]) -> str:
    """The table for people."""
    return "\n".join(_lines(table["rows"])) + "\n"


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    pairs = [p for row in rows for p in row["pairs"]]
    yield "# What removing a wasted Q/DQ pair saves, beside its price"
    yield ""
    yield "A float model with a Q/DQ pair at one of its large values, priced by `inlay explain`. Where the price is"
    yield "above 3 % of the time, the pair is removed, and both files are timed in the same blocks, one thread."
    yield ""
    yield f"{sum(map(true, pairs))} of {len(pairs)} removals save {LEAST} to {LARGEST} of the price."
    yield ""
    yield "| model | latency | value | share | price | saved, 95 % interval | of the price |"
    yield "|---|--:|---|--:|--:|--:|--:|"
    for row in rows:
        for pair in row["pairs"]:
            saved = pair["saved_ms"]
            shown = f"{saved['value']:.3f} ms [{saved['low']:.3f}, {saved['high']:.3f}]"
            yield (
                f"| {row['model']} | {pair['latency_ms']:.3f} ms | `{pair['value']}` | {pair['share']:.1%} | "
                f"{pair['price_ms']:.3f} ms | {shown} | {pair['of_price']['value']:.2f} |"
            )
