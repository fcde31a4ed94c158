"""How much of each model becomes integers on Ethos-U, for four ways of quantizing it: nodes and estimated cycles.

``own`` is Inlay's recipe for the NPU, ``own for ORT`` its recipe for ONNX Runtime, ``quantize_static`` that runtime's
own tool, and ``inputs only`` has Q/DQ nodes at the inputs of Conv, ConvTranspose, Gemm and MatMul alone, as TensorRT
wants them; ``with samples``, ranges that these do not state are measured (``inlay lower --data``). Dynamic dimensions
have the sizes of the samples. Cycles are estimates: Vela's, plus the stated model of the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx

from benchmarks import peer
from benchmarks.subjects import Subject
from inlay import api
from inlay.data import common_sizes, input_specs, read_samples
from inlay.errors import InlayError, ModelError
from inlay.model.load import load
from inlay.space.recipe import WEIGHTED
from inlay.tosa.ethos_u.partitions import compile_partitions
from inlay.tosa.ethos_u.vela import Accelerator
from inlay.tosa.integer_graph import NotLowered
from inlay.tosa.lowering import IDLE
from inlay.tosa.measured_ranges import with_measured_ranges
from inlay.tosa.rules import DATA_MOVEMENT, RULES

ACCELERATOR = "ethos-u55-128"
_QDQ = ("QuantizeLinear", "DequantizeLinear")


def inputs_only(model: onnx.ModelProto) -> onnx.ModelProto:
    """A Q/DQ model with the pairs of activations at the inputs of weighted operators only."""
    made = {out: node for node in model.graph.node for out in node.output}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)

    def source(name: str) -> str:
        """The float value behind a Q/DQ pair."""
        dq = made.get(name)
        q = None if dq is None or dq.op_type != "DequantizeLinear" else made.get(dq.input[0])
        return source(q.input[0]) if q is not None and q.op_type == "QuantizeLinear" else name

    for node in copy.graph.node:
        if node.op_type not in (*WEIGHTED, "DequantizeLinear"):
            for i, name in enumerate(node.input):
                node.input[i] = source(name)
    replaced = {o.name: source(o.name) for o in copy.graph.output}
    for node in copy.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                for out, inner in replaced.items():
                    if inner != out and name in (out, inner):
                        names[i] = out if name == inner else f"{out}_dequantized"
    return _without_dead(copy)


def _without_dead(model: onnx.ModelProto) -> onnx.ModelProto:
    needed = {o.name for o in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    del model.graph.node[:]
    model.graph.node.extend(reversed(kept))
    return model


def row(subject: Subject, folder: Path) -> dict[str, Any]:
    """For each way of quantizing: nodes in all, integer ones, why others are not, partitions, and cycles."""
    samples = str(subject.samples)
    specs = input_specs(load(subject.model).model)
    feeds = read_samples(samples, specs).feeds
    bind = common_sizes(specs, feeds)

    def recipe_of(target: str) -> Callable[[Path], None]:
        def quantize(out: Path) -> None:
            api.quantize(subject.model, out, target=target, data=samples, recipe="full-int8")

        return quantize

    def of_peer(out: Path) -> None:
        made = peer.quantize("static", subject.model, subject.samples, out)
        if made.path is None:
            raise ModelError(made.note)

    ways: Mapping[str, Callable[[Path], None]] = {
        "own": recipe_of(ACCELERATOR),
        "own for ORT": recipe_of("ort-cpu"),
        "quantize_static": of_peer,
    }
    found: dict[str, Any] = {}
    for name, quantize in ways.items():
        path = folder / f"{name.replace(' ', '_')}.onnx"
        try:
            quantize(path)
            model = onnx.load(path)
            found[name] = _lowered(model, bind)
            if name == "own":
                bare = inputs_only(model)
                found["inputs only"] = _lowered(bare, bind)
                measured, ranges = with_measured_ranges(bare, feeds, bind)
                found["with samples"] = _lowered(measured, bind) | {"measured": asdict(ranges)}
        except InlayError as error:
            found[name] = {"error": str(error)}
    return {"model": subject.name, "ways": found}


def _lowered(model: onnx.ModelProto, bind: Mapping[str, int]) -> dict[str, Any]:
    lowered, cost = compile_partitions(model, Accelerator.of(ACCELERATOR), bind=bind)
    owned = {op.source for op in lowered.graph.ops if op.source}
    left = {n.node: n for n in lowered.not_lowered if n.op_type not in _QDQ}
    types = {node.name: node.op_type for node in model.graph.node}
    nodes = {n for n in owned | set(left) if types.get(n, "") not in _QDQ}
    reasons = Counter(f"{n.op_type}: {n.reason}" for n in left.values())
    without_rule = sum(n.op_type not in RULES for n in left.values()) + _idle_moves(model, left)
    return {
        "nodes": len(nodes),
        "integer": len(nodes) - len(left),
        "without_rule": without_rule,
        "partitions": len(lowered.partitions),
        "cycles": round(cost.cycles),
        "npu": round(cost.npu),
        "reasons": dict(reasons.most_common()),
    }


def _idle_moves(model: onnx.ModelProto, left: Mapping[str, NotLowered]) -> int:
    """How many of the nodes on the host move (or look up) what an operator without rule computes there."""
    made = {out: node for node in model.graph.node for out in node.output}

    def idle(node: onnx.NodeProto | None) -> bool:
        if node is None or node.name not in left or not node.input:
            return False
        moved = node.input[: 2 if node.op_type == "Gather" else 1]  # a lookup is nothing without its row numbers
        return node.op_type not in RULES or (node.op_type in DATA_MOVEMENT and any(idle(made.get(v)) for v in moved))

    return sum(
        n.op_type in RULES and (n.reason == IDLE or idle(node))
        for node in model.graph.node
        if (n := left.get(node.name)) is not None
    )


def share(way: Mapping[str, Any]) -> float:
    """Integer nodes over those whose operator has a rule, less moves and lookups of what others compute on the host."""
    ruled = way["nodes"] - way["without_rule"]
    return way["integer"] / ruled if ruled else 1.0


def line(row: Mapping[str, Any]) -> str:
    """A row in short."""
    return "; ".join(f"{name} {_cell(way)}" for name, way in row["ways"].items())


def text(table: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    ways = ("own", "own for ORT", "quantize_static", "inputs only", "with samples")
    lines = [
        "# Lowering to integers",
        "",
        "Integer nodes of those whose operator has a rule (without moves and lookups of what others compute on the "
        f"host), and estimated cycles of the whole model on {ACCELERATOR} (Vela's, with the stated model of the host). "
        "With samples: inputs only, and ranges that are not stated measured on all samples (of how many values; SQNR "
        "of the outputs with them).",
        "",
        f"| model | {' | '.join(ways)} |",
        "|---" * (len(ways) + 1) + "|",
    ]
    for found in table["rows"]:
        missing = {"error": found["error"]} if "error" in found else None
        cells = [_cell(of) if (of := found.get("ways", {}).get(way, missing)) else "not run" for way in ways]
        lines.append(f"| {found['model']} | {' | '.join(cells)} |")
    lines += ["", "What stays on the host where less than 95 % is integer:", ""]
    for found in table["rows"]:
        for way, of in found.get("ways", {}).items():
            if "error" not in of and share(of) < _WANTED:
                lines.append(f"- {found['model']}, {way}: " + "; ".join(f"{n} x {r}" for r, n in of["reasons"].items()))
    return "\n".join(lines) + "\n"


_WANTED = 0.95


def _cell(way: Mapping[str, Any]) -> str:
    if "error" in way:
        return f"fails: {way['error'][:80]}"
    ruled = way["nodes"] - way["without_rule"]
    cell = f"{way['integer']} of {ruled} ({share(way):.0%}); {way['cycles'] / 1000:,.0f}k"
    measured = way.get("measured")
    if measured is None:
        return cell
    loss = "" if measured["sqnr_db"] is None else f", {measured['sqnr_db']:.1f} dB"
    return f"{cell} ({measured['values']} values{loss})"
