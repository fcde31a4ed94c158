"""A session of ONNX Runtime, whichever provider it runs on: built, run and timed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from inlay.errors import CompileFailed, RunFailed
from inlay.model.native import runtime_message
from inlay.targets.base import Feed
from inlay.targets.machine import timed

WAITING = ("session.force_spinning_stop", "1")  # between inferences, threads sleep; within one they do not


def settings(threads: int) -> Any:
    """Options of a session with so many intra-op threads, which prints nothing."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    if threads != 1:
        # threads of a session wait for its next inference without giving their processors up: beside other sessions, as
        # where models are timed in turn, they take them from whichever runs: 1.65x was read as 0.95x to 2.74x
        options.add_session_config_entry(*WAITING)
    return options


@contextmanager
def building(path: Path) -> Iterator[None]:
    """Turn whatever the runtime raises while it builds the model at ``path`` into CompileFailed."""
    try:
        yield
    except Exception as error:  # the binding raises bare exceptions of several types
        raise CompileFailed(f"ONNX Runtime cannot build {path.name}: {runtime_message(error)}") from error


def infer(session: Any, feed: Feed) -> list[np.ndarray]:
    """All outputs in the model's order. Raises RunFailed."""
    try:
        return list(session.run(None, dict(feed)))
    except Exception as error:  # as in building
        raise RunFailed(f"ONNX Runtime cannot run the model: {runtime_message(error)}") from error


class SessionExecutable:
    """What executables of every provider share: all but the profile."""

    def __init__(self, session: Any) -> None:
        self._session: Any = session
        self._outputs = [o.name for o in session.get_outputs()]

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name. Raises RunFailed."""
        return dict(zip(self._outputs, infer(self._open(), feed), strict=True))

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each inference with all transfers, shape (repeats,). Raises RunFailed."""
        session = self._open()
        return timed(lambda: infer(session, feed), repeats)

    def close(self) -> None:
        """Drop the session."""
        self._session = None

    def _open(self) -> Any:
        if self._session is None:
            raise RunFailed("the model was closed")
        return self._session


LIMIT_BYTES = 256_000_000
"""Weights above which a graph is not identified: writing and reading them would cost more than it saves."""

_BLOCK = 1 << 20


def weight_bytes(path: Path) -> int:
    """Bytes of a model's file and of the data outside it.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not ONNX, or a size in it is no number.
    """
    data = path.read_bytes()
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf has a type of its own, which need not be there
        raise ValueError(f"{path.name} is not ONNX") from error
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
