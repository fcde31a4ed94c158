"""Weights on disk, once, and model files that refer to them.

A search emits many candidates that differ in a few nodes but share every weight. Each weight tensor is written once to
a store; a candidate is then a small file with external-data references, and building it copies no weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

INLINE_BYTES = 1024
"""Tensors below this stay inside the model: shape inference reads small constants."""

_ALIGN = 4096  # a page: runtimes map external data


class WeightStore:
    """An append-only file of tensors, addressed by key. Not safe for two writers."""

    NAME = "weights.bin"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / self.NAME
        self._where: dict[str, tuple[int, int]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.path.write_bytes(b"")

    def put(self, key: str, data: Callable[[], bytes | memoryview]) -> tuple[int, int]:
        """Offset and length in bytes of the tensor called ``key``; ``data`` is asked only the first time."""
        if key not in self._where:
            payload = data()
            with self.path.open("ab") as file:
                file.write(b"\0" * (-file.tell() % _ALIGN))
                offset = file.tell()
                file.write(payload)
            self._where[key] = (offset, len(payload))
        return self._where[key]

    def put_array(self, key: str, make: Callable[[], np.ndarray]) -> tuple[int, ...]:
        """Shape of the array called ``key``; ``make`` is asked for it only the first time."""
        if key not in self._shapes:
            array = make()
            self.put(key, np.ascontiguousarray(array).tobytes)
            self._shapes[key] = array.shape
        return self._shapes[key]

    def reference(self, key: str, name: str, dtype: int, dims: tuple[int, ...]) -> onnx.TensorProto:
        """A tensor proto called ``name`` that points to the stored tensor ``key``."""
        offset, length = self._where[key]
        proto = onnx.TensorProto(name=name, data_type=dtype, dims=dims, data_location=onnx.TensorProto.EXTERNAL)
        for k, v in (("location", self.NAME), ("offset", str(offset)), ("length", str(length))):
            proto.external_data.add(key=k, value=v)
        return proto

    def read(self, proto: onnx.TensorProto) -> bytes:
        """The bytes that a reference made by this store points to."""
        where = {entry.key: entry.value for entry in proto.external_data}
        with self.path.open("rb") as file:
            file.seek(int(where["offset"]))
            return file.read(int(where["length"]))


def skeleton(model: ir.Model, store: WeightStore) -> onnx.ModelProto:
    """``model`` as a proto whose larger initializers live in ``store``. The model itself is not changed."""
    copy = model.clone()
    for name, value in copy.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < INLINE_BYTES or tensor.dtype is ir.DataType.STRING:
            continue
        offset, length = store.put(f"float:{name}", tensor.tobytes)
        value.const_value = ir.ExternalTensor(
            store.NAME,
            offset,
            length,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=name,
            base_dir=store.folder,
        )
    return ir.to_proto(copy)


def embed(proto: onnx.ModelProto, store: WeightStore) -> onnx.ModelProto:
    """A copy of ``proto`` with every reference into ``store`` replaced by the bytes themselves."""
    full = onnx.ModelProto()
    full.CopyFrom(proto)
    for tensor in full.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            data = store.read(tensor)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = data
    return full


def external_bytes(proto: onnx.ModelProto) -> int:
    """Bytes of tensor data that ``proto`` keeps outside itself."""
    return sum(
        int(entry.value)
        for tensor in proto.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "length"
    )


def relocate(proto: onnx.ModelProto, store: WeightStore, data_file: Path) -> onnx.ModelProto:
    """A copy of ``proto`` whose external tensors are gathered in ``data_file``, which lies beside the model."""
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


def tensor_proto(name: str, array: np.ndarray, dtype: int) -> onnx.TensorProto:
    """An inline tensor of ``array``'s numbers with ONNX element type ``dtype`` (4-bit types are packed)."""
    if dtype == onnx.TensorProto.INT4:
        return onnx.helper.make_tensor(name, dtype, array.shape, array.astype(ml_dtypes.int4).ravel())
    data = np.ascontiguousarray(array).tobytes()
    return onnx.TensorProto(name=name, data_type=dtype, dims=array.shape, raw_data=data)
