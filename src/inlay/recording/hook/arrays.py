"""What a session is fed, by whichever of its methods, as arrays of numbers or of text."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple


class Unread(Exception):
    """Why an array that was fed cannot be kept."""


def second(given: Any, named: Any) -> Any:
    """The feed of ``run(output_names, input_feed)`` and of those like it."""
    for name in ("input_feed", "input_dict_ort_values"):
        if name in named:
            return named[name]
    return given[1]


def of_vector(given: Any, named: Any) -> dict[str, Any]:
    """The feed of ``run_with_ortvaluevector(run_options, feed_names, feeds, …)``."""
    names = named["feed_names"] if "feed_names" in named else given[1]
    feeds = named["feeds"] if "feeds" in named else given[2]
    return dict(zip(names, feeds))  # noqa: B905


def bound_value(how: str, given: Any, named: Any) -> Any:
    """The value that was bound, as the session will find it."""
    if how != "bind_input":
        return next(iter((*given, *named.values())))
    names = ("device_type", "device_id", "element_type", "shape", "buffer_ptr")
    said = {**dict(zip(names, given)), **named}  # noqa: B905
    return _Buffer(said["device_type"], said["element_type"], said["shape"], said["buffer_ptr"])


class _Buffer(NamedTuple):
    """Memory that was bound by its address."""

    device: str
    type: Any
    shape: Any
    address: int


def array_of(value: Any) -> Any:
    """What was fed, as an array of numbers or of text that no pickle is needed for. Raises Unread."""
    import numpy as np

    if isinstance(value, _Buffer):
        return _of_buffer(value)
    if not isinstance(value, np.ndarray):
        try:  # an OrtValue, wherever it lies, or a tensor of some framework
            value = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        except Exception as error:
            raise Unread(f"an input of type {type(value).__name__} could not be read: {error}") from error
    if value.dtype.kind == "S" or (value.dtype.hasobject and all(isinstance(each, bytes) for each in value.ravel())):
        value = np.char.decode(value.astype("S"), "utf8")
    elif value.dtype.hasobject:
        if not all(isinstance(each, str) for each in value.ravel()):
            raise Unread("an input holds objects that are no text")
        value = value.astype(np.str_)
    if value.dtype.kind not in "biufU":
        raise Unread(f"an input has the type {value.dtype}, of which samples are not taken")
    return value


def _of_buffer(buffer: _Buffer) -> Any:
    import numpy as np

    if buffer.device != "cpu":
        raise Unread(f"an input was bound by its address on {buffer.device}: bind an OrtValue, or give arrays to run")
    if isinstance(buffer.type, int):
        raise Unread("an input was bound by its address with the number of an ONNX type: give a type of numpy")
    shape, dtype = tuple(map(int, buffer.shape)), np.dtype(buffer.type)
    count = 1
    for length in shape:
        count *= length
    held = (ctypes.c_char * (count * dtype.itemsize)).from_address(buffer.address) if count else b""
    return np.frombuffer(held, dtype, count).reshape(shape).copy()
