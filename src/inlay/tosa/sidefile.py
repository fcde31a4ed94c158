"""The lowered model on disk: flatbuffers, host models, and a JSON file that says how they fit together.

``OUT.tosa`` is the first TOSA partition (nearly always the only one); further ones are ``OUT.1.tosa`` …, host
partitions ``OUT.host0.onnx`` …. ``OUT.tosa.json`` describes them; its keys are stable (DESIGN §13): keys are added,
never renamed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inlay.errors import UsageError
from inlay.files import refuse_overwriting, replacing
from inlay.tosa import ir
from inlay.tosa.emitter import TosaTensor
from inlay.tosa.ir import IntegerGraph
from inlay.tosa.lowering import Lowered, Partition
from inlay.tosa.serialize import TOSA_VERSION

_NOTHING_COMPUTED = "it computes nothing, its outputs are its inputs in other shapes or under other names"


def describe(lowered: Lowered, files: Mapping[int, str] | None = None) -> dict[str, Any]:
    """The content of the side file.

    Args:
        files: name of each partition's file, by its index.

    Returns:
        ``profile``, ``tosa_version``, ``inputs`` and ``outputs`` of the first TOSA partition (in flatbuffer order),
        ``partitions``, ``not_lowered``; besides, the ONNX model's own ``model_inputs`` and ``model_outputs``.
        Inputs and outputs have ``name`` (of the ONNX model where they are its input or output), ``tensor`` (the
        name that links partitions), ``dtype``, ``shape`` (stored), ``permutation`` (stored axis ``i`` is ONNX axis
        ``permutation[i]``), ``scale`` and ``zero_point`` (null for what is not quantized).
    """
    names = _onnx_names(lowered.graph)
    partitions = [
        _partition(lowered.graph, part, names, (files or {}).get(index))
        for index, part in enumerate(lowered.partitions)
    ]
    none: dict[str, Any] = {"inputs": [], "outputs": []}
    first = next((p for p in partitions if p["kind"] == "tosa"), none)
    return {
        "profile": lowered.profile,
        "tosa_version": TOSA_VERSION,
        "inputs": first["inputs"],
        "outputs": first["outputs"],
        "partitions": partitions,
        "not_lowered": [
            {"node": n.node, "reason": n.reason, "op_type": n.op_type, "place": n.place} for n in lowered.not_lowered
        ],
        "model_inputs": [{"name": i.name, "dtype": i.dtype, "tensor": i.tensor} for i in lowered.graph.inputs],
        "model_outputs": [{"name": i.name, "dtype": i.dtype, "tensor": i.tensor} for i in lowered.graph.outputs],
    }


def _onnx_names(graph: IntegerGraph) -> dict[str, str]:
    """The ONNX name of each tensor that carries a model input or output, quantized forms included."""
    names = {i.tensor: i.name for i in (*graph.inputs, *graph.outputs)}
    for op in graph.ops:
        if op.executor is ir.Executor.CALLER:
            inward = isinstance(op, ir.Quantize)
            inner, outer = (op.out, op.inputs[0]) if inward else (op.inputs[0], op.out)
            names.setdefault(inner, names.get(outer, outer))
    return names


def _partition(graph: IntegerGraph, part: Partition, names: Mapping[str, str], file: str | None) -> dict[str, Any]:
    if part.tosa is not None:
        inputs, outputs = part.tosa.inputs, part.tosa.outputs
    else:
        inputs, outputs = (
            tuple(_unpermuted(graph, n) for n in side) for side in (part.subgraph.inputs, part.subgraph.outputs)
        )
    return {
        "kind": part.kind,
        "nodes": list(part.nodes),
        "file": file,
        "inputs": [_tensor(graph, t, names) for t in inputs],
        "outputs": [_tensor(graph, t, names) for t in outputs],
    }


def _unpermuted(graph: IntegerGraph, name: str) -> TosaTensor:
    tensor = graph.tensors[name]
    shape = tensor.shape or ()
    return TosaTensor(name, tensor.dtype, shape, tuple(range(len(shape))))


def _tensor(graph: IntegerGraph, stored: TosaTensor, names: Mapping[str, str]) -> dict[str, Any]:
    qparams = graph.tensors[stored.tensor].qparams
    return {
        "name": names.get(stored.tensor, stored.tensor),
        "tensor": stored.tensor,
        "dtype": stored.dtype,
        "shape": list(stored.shape),
        "permutation": list(stored.permutation),
        "scale": None if qparams is None else qparams.scale[0],
        "zero_point": None if qparams is None else qparams.zero_point[0],
    }


def side_of(path: Path) -> Path:
    """The side file of the flatbuffer ``path``."""
    return path.with_name(f"{path.name}.json")


def write(lowered: Lowered, path: Path, inputs: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Write every partition and the side file; returns the paths, ``path`` first, the side file last.

    Raises:
        UsageError: nothing became TOSA (the message names the first reasons), a file would overwrite one of
            ``inputs``, or the folder cannot be written.
    """
    if not lowered.tosa:
        reasons = "; ".join(f"{n.node}: {n.reason}" for n in lowered.not_lowered[:3])
        raise UsageError(
            f"nothing of the model can be lowered to TOSA {lowered.profile}: {reasons or _NOTHING_COMPUTED}"
        )
    contents: dict[Path, bytes] = {}
    files: dict[int, str] = {}
    binaries = hosts = 0
    for index, part in enumerate(lowered.partitions):
        if part.tosa is not None:
            file = path if binaries == 0 else path.with_name(f"{path.stem}.{binaries}{path.suffix}")
            contents[file], binaries = part.tosa.data, binaries + 1
        else:
            assert part.host is not None
            file = path.with_name(f"{path.stem}.host{hosts}.onnx")
            contents[file], hosts = part.host.SerializeToString(), hosts + 1
        files[index] = file.name
    side = side_of(path)
    contents[side] = (json.dumps(describe(lowered, files), indent=1) + "\n").encode()
    refuse_overwriting(contents, inputs)
    for file, data in contents.items():
        with replacing(file, UsageError) as fresh:
            fresh.write_bytes(data)
    return tuple(sorted(contents, key=lambda f: (f != path, f == side)))
