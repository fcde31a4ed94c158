"""What the runtime really executes, as a digest: models with the same optimized graph need one measurement only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx

LIMIT_BYTES = 256_000_000
"""Weights above which a graph is not identified: writing and reading them would cost more than it saves."""

_BLOCK = 1 << 20


def weight_bytes(path: Path) -> int:
    """Bytes of a model's file and of the data outside it.

    Raises:
        OSError: it cannot be read.
        DecodeError: it is not ONNX.
        ValueError: a size in it is no number.
    """
    model = onnx.load_model_from_string(path.read_bytes())
    outside = (int(e.value) for t in model.graph.initializer for e in t.external_data if e.key == "length")
    return path.stat().st_size + sum(outside)


def graph_digest(path: Path) -> str:
    """Digest of a graph that the runtime wrote, whatever its nodes and values are called and in which order they stand.

    Every value is identified by the operator, the attributes and the identities of the inputs that it is computed from
    (a Merkle tree), constants by type, shape and content. Names count only at inputs and outputs, and in the bodies of
    If, Loop and Scan.

    Args:
        path: of the model; external data is read from files beside it.
    """
    graph = onnx.load(path, load_external_data=False).graph
    known = {"": "absent"}
    known.update((v.name, f"input {v.name} {v.type.SerializeToString(deterministic=True)!r}") for v in graph.input)
    known.update((t.name, _constant(t, path.parent)) for t in graph.initializer)
    nodes = []
    for node in graph.node:  # the runtime writes them in topological order
        own = hashlib.sha256(f"{node.domain} {node.op_type} {len(node.output)}".encode())
        for text in (*_attributes(node), *(known.get(v, v) for v in node.input)):
            own.update(b"\0" + text.encode())
        nodes.append(own.hexdigest())
        known.update((v, f"{nodes[-1]} {i}") for i, v in enumerate(node.output) if v)
    whole = hashlib.sha256("\n".join(sorted(nodes)).encode())
    for output in graph.output:
        whole.update(f"\n{output.name} {known.get(output.name, '')}".encode())
    return whole.hexdigest()[:32]


def _attributes(node: onnx.NodeProto) -> Iterator[str]:
    for attribute in sorted(node.attribute, key=lambda a: a.name):
        yield attribute.SerializeToString(deterministic=True).hex()


def _constant(tensor: onnx.TensorProto, folder: Path) -> str:
    found = hashlib.sha256(f"{tensor.data_type} {list(tensor.dims)}".encode())
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        place: Mapping[str, str] = {e.key: e.value for e in tensor.external_data}
        with (folder / place["location"]).open("rb") as file:
            file.seek(int(place.get("offset", 0)))
            left = int(place["length"])
            while left > 0:
                block = file.read(min(left, _BLOCK))
                if not block:
                    break
                found.update(block)
                left -= len(block)
    else:
        plain = onnx.TensorProto()
        plain.CopyFrom(tensor)
        plain.ClearField("name")
        plain.ClearField("doc_string")
        found.update(plain.SerializeToString(deterministic=True))
    return found.hexdigest()
