"""ONNX files, read without the package ``onnx``: on a board it goes by that name, and offers what a worker asks for.

Which fields messages have is not written here: the archive brings :func:`table`, made of the package's own definition.
A message keeps the bytes that it was read from, so that what nobody asks for costs nothing, weights least of all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

_TABLE = "onnx_fields.json"
_SCALAR, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # how a field is written (protobuf's wire types)
_FLOATS = {"float": ("<f4", "<f"), "double": ("<f8", "<d")}


def table(messages: Iterable[Any]) -> str:
    """The fields of messages, from the descriptors of protobuf: by message and number the name, type and whether many.

    Also the values of enumerations, by the message in which they are defined.
    """
    fields, values = dict[str, Any](), dict[str, Any]()
    kinds = {1: "double", 2: "float", 9: "text", 12: "bytes"}
    waiting = [*messages]
    while waiting:
        each = waiting.pop()
        waiting += each.nested_types
        fields[_named(each)] = {
            f.number: (
                f.name,
                _named(f.message_type) if f.message_type else kinds.get(f.type, "int"),
                f.is_repeated if hasattr(f, "is_repeated") else f.label == f.LABEL_REPEATED,
            )
            for f in each.fields
        }
        values[_named(each)] = {v.name: v.number for e in each.enum_types for v in e.values}
    return json.dumps({"fields": fields, "values": values})


def _named(message: Any) -> str:
    """The name of a message with those that it is defined in, such as ``TypeProto.Tensor``."""
    return str(message.full_name).partition(".")[2]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        found |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return found, at


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


class Message:
    """A message of any kind: its fields are attributes, and have their usual values where they are not there."""

    def __init__(self, kind: str, data: memoryview) -> None:
        self._kind, self._data = kind, data
        self._spans: dict[int, list[tuple[int, int, int, int]]] = {}
        at = 0
        try:
            while at < len(data):
                begin = at
                tag, at = _varint(data, at)
                number, how = tag >> 3, tag & 7
                if how == _SCALAR:
                    first = at
                    _, at = _varint(data, at)
                elif how == _BYTES:
                    length, first = _varint(data, at)
                    at = first + length
                elif how in (_FIXED64, _FIXED32):
                    first, at = at, at + (8 if how == _FIXED64 else 4)
                else:
                    raise ValueError(f"a field is written in way {how}")
                if at > len(data):
                    raise ValueError("it is cut short")
                self._spans.setdefault(number, []).append((how, begin, first, at))
        except IndexError:
            raise ValueError("it is cut short") from None

    def __getattr__(self, name: str) -> Any:
        """A field, read when it is first asked for."""
        for number, (field, kind, many) in _fields[self._kind].items():
            if field == name:
                spans = self._spans.get(int(number), [])
                found = [value for span in spans for value in self._values(span, kind)]
                value: Any = found if many else found[-1] if found else _usual(kind)
                self.__dict__[name] = value
                return value
        if name in _enums.get(self._kind, {}):
            return _enums[self._kind][name]
        raise AttributeError(name)

    def _values(self, span: tuple[int, int, int, int], kind: str) -> Iterator[Any]:
        how, _, first, end = span
        data = self._data[first:end]
        if kind in _fields:
            yield Message(kind, data)
        elif kind in _FLOATS:
            yield from np.frombuffer(data, _FLOATS[kind][0]).tolist()
        elif kind == "text":
            yield bytes(data).decode("utf8", "replace")
        elif kind == "bytes":
            yield bytes(data)
        elif how == _BYTES:  # integers in one piece
            at = 0
            while at < len(data):
                value, at = _varint(data, at)
                yield _signed(value)
        else:
            yield _signed(_varint(data, 0)[0])

    def HasField(self, name: str) -> bool:  # noqa: N802  (protobuf's name)
        """Whether a field is there."""
        return any(f[0] == name and int(n) in self._spans for n, f in _fields[self._kind].items())

    def CopyFrom(self, other: Message) -> None:  # noqa: N802
        """Become a copy of another message of the kind."""
        self.__dict__ = {"_kind": other._kind, "_data": other._data, "_spans": dict(other._spans)}

    def ClearField(self, name: str) -> None:  # noqa: N802
        """Forget a field."""
        for number, field in _fields[self._kind].items():
            if field[0] == name:
                self._spans.pop(int(number), None)
                self.__dict__.pop(name, None)

    def SerializeToString(self, deterministic: bool = True) -> bytes:  # noqa: N802
        """The fields as they were read, by number."""
        return b"".join(self._data[begin:end] for n in sorted(self._spans) for _, begin, _, end in self._spans[n])


def _usual(kind: str) -> Any:
    if kind in _fields:
        return Message(kind, memoryview(b""))
    return {"text": "", "bytes": b"", "int": 0}.get(kind, 0.0)


class _Kind:
    """A kind of message, as the package has it: called, it makes an empty one; its enumerations are attributes."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(self) -> Message:
        return Message(self._kind, memoryview(b""))

    def __getattr__(self, name: str) -> int:
        return int(_enums[self._kind][name])

    def __instancecheck__(self, found: object) -> bool:
        return isinstance(found, Message) and found._kind == self._kind


def load_model_from_string(data: bytes) -> Message:
    """A model. Raises ValueError where it is none."""
    return Message("ModelProto", memoryview(data))


def load(path: str | Path, load_external_data: bool = False) -> Message:
    """The model in a file; data outside of it is not read. Raises OSError, ValueError."""
    return load_model_from_string(Path(path).read_bytes())


class checker:  # noqa: N801  (as a module of the package)
    """What the package checks was checked where the model was written."""

    @staticmethod
    def check_model(path: str) -> None:
        """Read it. Raises ValueError."""
        if not load(path).graph.node:
            raise ValueError("it has no operators")


class helper:  # noqa: N801
    """One of the package's helpers."""

    @staticmethod
    def tensor_dtype_to_np_dtype(kind: int) -> np.dtype:
        """The array type of a tensor's; of types that numpy does not know, that of equally many bytes."""
        names = {v: k for k, v in reversed(_enums["TensorProto"].items())}  # types come first, places behind them
        known = {"FLOAT": "float32", "DOUBLE": "float64", "BOOL": "bool", "STRING": "object", "BFLOAT16": "uint16"}
        name = known.get(names[kind], names[kind].lower())
        return np.dtype(name if re.fullmatch(r"bool|object|float(16|32|64)|u?int(8|16|32|64)", name) else "uint8")


def use(text: str) -> None:
    """Know the fields of a :func:`table`."""
    given = json.loads(text)
    _fields.update(given["fields"])
    _enums.update(given["values"])
    for kind in _fields:
        globals()[kind] = _Kind(kind)


_fields: dict[str, dict[str, tuple[str, str, bool]]] = {}
_enums: dict[str, dict[str, int]] = {}
if __name__ == "onnx":
    import pkgutil

    use((pkgutil.get_data("inlay.measure.ssh", _TABLE) or b"").decode("utf8"))
