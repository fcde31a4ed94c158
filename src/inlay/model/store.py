"""Weights on disk, stored once; model files refer to them as external data.

A search emits many candidates that differ in a few nodes but share most weights. Each weight tensor is written once to
a store; a candidate is then a small file with external-data references, and writing it copies no weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, Message

from inlay.model.serialize import proto_with

INLINE_BYTES = 1024
"""Smaller tensors (bytes) stay inside the model: shape inference reads small constants."""

_ALIGN = 4096  # bytes; a memory page, since runtimes map external data


class WeightStore:
    """An append-only file of tensors, addressed by key. Not safe for concurrent writers."""

    NAME = "weights.bin"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / self.NAME
        self._file: BinaryIO | None = None  # while many are put
        self._where: dict[str, tuple[int, int]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.path.write_bytes(b"")

    @classmethod
    def copied(cls, folder: Path) -> WeightStore:
        """A store whose file, or what a model needs of it, came from elsewhere: only to read."""
        store = cls.__new__(cls)
        store.folder, store.path = folder, folder / cls.NAME
        store._file, store._where, store._shapes = None, {}, {}
        return store

    def put(self, key: str, data: Callable[[], bytes | memoryview]) -> tuple[int, int]:
        """Offset and length in bytes of the tensor called ``key``; ``data`` is called only the first time."""
        if key not in self._where:
            payload = data()
            with self.appending() as file:
                gap = -file.tell() % _ALIGN
                offset = file.tell() + gap
                file.write(b"\0" * gap)
                file.write(payload)
            self._where[key] = (offset, len(payload))
        return self._where[key]

    @contextmanager
    def appending(self) -> Iterator[BinaryIO]:
        """Within this, the file is opened once for all that is put; what is put can be read afterwards."""
        if self._file is not None:
            yield self._file
            return
        with self.path.open("ab") as self._file:
            try:
                yield self._file
            finally:
                self._file = None

    def put_array(self, key: str, make: Callable[[], np.ndarray]) -> tuple[int, ...]:
        """Shape of the array called ``key``; ``make`` is called only the first time."""
        if key not in self._shapes:
            array = make()
            self.put(key, lambda: packed(array))
            self._shapes[key] = array.shape
        return self._shapes[key]

    def reference(self, key: str, name: str, dtype: int, dims: tuple[int, ...]) -> onnx.TensorProto:
        """A tensor proto called ``name`` that refers to the stored tensor ``key``."""
        offset, length = self._where[key]
        proto = onnx.TensorProto(name=name, data_type=dtype, dims=dims, data_location=onnx.TensorProto.EXTERNAL)
        for k, v in (("location", self.NAME), ("offset", str(offset)), ("length", str(length))):
            proto.external_data.add(key=k, value=v)
        return proto

    def read(self, proto: onnx.TensorProto) -> bytes:
        """The bytes that a reference into this store stands for."""
        where = {entry.key: entry.value for entry in proto.external_data}
        with self.path.open("rb") as file:
            file.seek(int(where["offset"]))
            return file.read(int(where["length"]))


def externalize_weights(model: ir.Model, store: WeightStore) -> onnx.ModelProto:
    """``model`` as a proto whose larger initializers are in ``store``. The model itself is not changed.

    Raises:
        ModelError: something was read that cannot be written.
    """

    def stored(name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol | onnx.TensorProto:
        dims = tensor.shape.numpy()
        if tensor.dtype is ir.DataType.STRING or math.prod(dims) * tensor.dtype.bitwidth < 8 * INLINE_BYTES:
            return tensor
        key = f"float:{name}"
        store.put(key, tensor.tobytes)
        return store.reference(key, name, tensor.dtype.value, tuple(dims))

    with store.appending():
        return proto_with(model, stored)


def embed_weights(proto: onnx.ModelProto, store: WeightStore) -> onnx.ModelProto:
    """A self-contained copy of ``proto``: every reference into ``store`` is replaced by the data itself."""
    full = onnx.ModelProto()
    full.CopyFrom(proto)
    for tensor in full.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            data = store.read(tensor)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = data
    return full


def write_embedded(proto: onnx.ModelProto, store: WeightStore, path: Path) -> None:
    """Write what :func:`embed_weights` gives to a file, with no more than one stored tensor in memory at a time."""
    before, behind = _around(proto, "graph")
    first, last = _around(proto.graph, "initializer")
    tensors = [_Written(tensor) for tensor in proto.graph.initializer]
    heads = [_key(proto.graph, "initializer", tensor.size) for tensor in tensors]
    size = len(first) + sum(len(h) + t.size for h, t in zip(heads, tensors, strict=True)) + len(last)
    with path.open("wb") as file:
        file.write(before + _key(proto, "graph", size) + first)
        for head, tensor in zip(heads, tensors, strict=True):
            file.write(head + tensor.before)
            if tensor.is_stored:
                file.write(store.read(tensor.given))
                file.write(tensor.behind)
        file.write(last + behind)


class _Written:
    """An initializer as it is written: what stands before and behind the data that is stored, if it is."""

    def __init__(self, tensor: onnx.TensorProto) -> None:
        self.given, self.behind = tensor, b""
        self.is_stored = tensor.data_location == onnx.TensorProto.EXTERNAL
        count = 0
        if self.is_stored:
            count = next(int(entry.value) for entry in tensor.external_data if entry.key == "length")
            self.before, self.behind = _around(tensor, "raw_data", ("external_data", "data_location"))
            self.before += _key(tensor, "raw_data", count)
        else:
            self.before = tensor.SerializeToString()
        self.size = len(self.before) + count + len(self.behind)


def _around(message: Message, name: str, dropped: Collection[str] = ()) -> tuple[bytes, bytes]:
    """What is written of a message before and behind one of its fields, without those that are ``dropped``.

    Fields are written in the order of their numbers.
    """
    number, parts = message.DESCRIPTOR.fields_by_name[name].number, []
    for is_part in (number.__gt__, number.__lt__):
        part = type(message)()
        part.CopyFrom(message)
        for field, _ in message.ListFields():
            if field.name in dropped or not is_part(field.number):
                part.ClearField(field.name)
        parts.append(part.SerializeToString())
    return parts[0], parts[1]


def _key(message: Message, name: str, length: int) -> bytes:
    """How a field of so many bytes begins: its number with wire type 2, and the length, both in groups of 7 bits."""
    found = bytearray()
    for number in (message.DESCRIPTOR.fields_by_name[name].number << 3 | 2, length):
        while number >= 0x80:
            found.append(number & 0x7F | 0x80)
            number >>= 7
        found.append(number)
    return bytes(found)


def external_bytes(proto: onnx.ModelProto) -> int:
    """Bytes of the external data that ``proto`` refers to."""
    return sum(
        int(entry.value)
        for tensor in proto.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "length"
    )


def model_bytes(path: Path) -> int:
    """Bytes of a model with all that it refers to, as a file of its own; of the file alone where that is no ONNX."""
    try:
        referred = external_bytes(onnx.load_model_from_string(path.read_bytes()))
    except (DecodeError, ValueError):  # a runtime's own format, or sizes that are no numbers
        referred = 0
    return path.stat().st_size + referred


def save_external_data(proto: onnx.ModelProto, store: WeightStore, data_file: Path) -> onnx.ModelProto:
    """A copy of ``proto`` whose external data is written to ``data_file``, in the model's own folder."""
    moved = onnx.ModelProto()
    moved.CopyFrom(proto)
    with data_file.open("wb") as file:
        for tensor in moved.graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                continue
            data = store.read(tensor)
            file.write(b"\0" * (-file.tell() % _ALIGN))
            offset = file.tell()
            file.write(data)
            tensor.ClearField("external_data")
            for k, v in (("location", data_file.name), ("offset", str(offset)), ("length", str(len(data)))):
                tensor.external_data.add(key=k, value=v)
    return moved


def packed(array: np.ndarray) -> bytes:
    """The data of a tensor; of 4-bit integers two share a byte, the first one in its lower half."""
    if array.dtype != ml_dtypes.int4:
        return np.ascontiguousarray(array).tobytes()
    flat = array.astype(np.int8).ravel().view(np.uint8) & 0xF
    flat = np.append(flat, np.zeros(flat.size % 2, np.uint8))
    return (flat[0::2] | flat[1::2] << 4).tobytes()


def unpacked(data: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """The 4-bit integers that :func:`packed` gave ``data`` for."""
    pairs = np.frombuffer(data, np.uint8)
    flat = np.stack([pairs & 0xF, pairs >> 4], axis=1).ravel()[: int(np.prod(shape))].astype(np.int8)
    return np.where(flat > 7, flat - 16, flat).astype(ml_dtypes.int4).reshape(shape)


def tensor_proto(name: str, array: np.ndarray, dtype: int) -> onnx.TensorProto:
    """``array`` as an inline tensor with ONNX element type ``dtype`` (4-bit types are packed)."""
    data = packed(array.astype(ml_dtypes.int4) if dtype == onnx.TensorProto.INT4 else array)
    return onnx.TensorProto(name=name, data_type=dtype, dims=array.shape, raw_data=data)
