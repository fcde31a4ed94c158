"""What must travel with a message: the files that it names, with external data, each byte once.

Candidates of a run share one file of weights that only grows (:mod:`inlay.model.store`). So external data travels as
the ranges that a model refers to, and lands at the same places of a file with the same name: the device's copy has
holes where no model has looked yet.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from inlay.data.archives import load_workload
from inlay.errors import TargetError
from inlay.measure import policy
from inlay.measure.remote.device import digest_of
from inlay.model.external import tensors_of


@dataclass(frozen=True)
class FileRange:
    """A range of a file, for a place in the device's folder."""

    source: Path  # the file here
    name: str  # path in the device's folder, with slashes
    offset: int  # in both files (bytes)
    length: int  # bytes

    @property
    def key(self) -> tuple[str, int, int]:
        """By which a folder knows it."""
        return self.name, self.offset, self.length

    def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """The data in pieces of at most :data:`~inlay.measure.policy.CHUNK` bytes, each with its offset.

        They are arrays of bytes: of ``bytes``, Ray would make a copy at each end, too.

        Raises:
            TargetError: the file is shorter than what refers to it says, or cannot be read.
        """
        with readable(self.source), self.source.open("rb") as file:
            file.seek(self.offset)
            at, end = self.offset, self.offset + self.length
            while True:
                data = file.read(min(policy.CHUNK, end - at))
                if len(data) < min(policy.CHUNK, end - at):
                    raise TargetError(f"{self.source} ends at byte {at + len(data)}, and {end} are referred to")
                yield at, np.frombuffer(data, np.uint8)
                at += len(data)
                if at >= end:
                    return


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Within this, what the system says of a file is a TargetError."""
    try:
        yield
    except OSError as error:
        raise TargetError(f"{path} cannot be read: {error.strerror or error}") from error


def ranges_of_model(path: Path) -> tuple[str, list[FileRange]]:
    """The model's name in the device's folder, and all that it consists of; the model itself comes last.

    Raises:
        TargetError: it cannot be read.
    """
    data = _read(path)
    folder = digest_of(str(path.parent.resolve()).encode())
    name = f"{folder}/{digest_of(data)}{path.suffix}"
    return name, [*_external(path, data, folder), FileRange(path, name, 0, len(data))]


def ranges_of_feed(path: Path) -> tuple[str, list[FileRange]]:
    """The same for a feed, or for a workload with the feeds that it lists. Raises TargetError."""
    listed = [path] if path.suffix != ".json" else [*(feed for feed, _ in load_workload(path)), path]
    folder = digest_of(json.dumps([digest_of(_read(p)) for p in listed]).encode())
    return f"{folder}/{path.name}", [FileRange(p, f"{folder}/{p.name}", 0, p.stat().st_size) for p in listed]


def _read(path: Path) -> bytes:
    with readable(path):
        return path.read_bytes()


def _external(path: Path, data: bytes, folder: str) -> Iterator[FileRange]:
    if b"location" not in data:  # the key of every reference to external data: large models need not be parsed
        return
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError:  # a runtime's own format
        return
    for tensor in tensors_of([model.graph]):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        where = {entry.key: entry.value for entry in tensor.external_data}
        place = PurePosixPath(where.get("location", ""))
        source = path.parent / place
        if place.is_absolute() or ".." in place.parts or not source.is_file():
            continue  # the runtime says what is wrong with it, as it does here
        offset = int(where.get("offset", 0))
        yield FileRange(source, f"{folder}/{place}", offset, int(where.get("length", source.stat().st_size - offset)))
