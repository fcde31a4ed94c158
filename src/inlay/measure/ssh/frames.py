"""Messages between a run and a board, over standard input and output: a line of JSON, and the bytes that it refers to.

Both sides use it; on the board Python may be 3.9.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

_BYTES = "\0bytes"  # in place of bytes, an object with this one name: how many of them follow the line


def packed(message: Any) -> list[bytes]:
    """A message as what is to be written."""
    blobs: list[bytes] = []

    def apart(value: Any) -> dict[str, int]:
        blob = value.tobytes() if isinstance(value, np.ndarray) else bytes(value)
        blobs.append(blob)
        return {_BYTES: len(blob)}

    return [f"{json.dumps(message, default=apart)}\n".encode(), *blobs]


def unpacked(line: bytes, read: Callable[[int], bytes]) -> Any:
    """The message that a line begins.

    Raises:
        ValueError: it is not JSON.
    """

    def whole(value: dict[str, Any]) -> Any:
        return read(int(value[_BYTES])) if value.keys() == {_BYTES} else value

    return json.loads(line.decode("utf8"), object_hook=whole)
