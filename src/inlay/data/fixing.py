"""What the user fixes inputs to, checked against what the inputs take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inlay.data.fixed import shown
from inlay.data.samples import InputSpec
from inlay.errors import UsageError

_MOST = 4096  # numbers of a fixed input: it stands for a mode, a rate, a position, not for data

FixedValues = Sequence[str] | Mapping[str, Any]
"""As ``name=value`` or ``name=value,value,…``, or as a mapping from names to numbers and arrays."""


def parse_fixed(given: FixedValues, specs: Sequence[InputSpec]) -> dict[str, Any]:
    """Values of inputs by name, checked against the inputs, as nested lists.

    Raises:
        UsageError: there is no such input, it takes no such value, or its shape is not known.
    """
    if isinstance(given, Mapping):
        entries = [(str(name), np.asarray(value), f"--fix {name}") for name, value in given.items()]
    else:
        entries = [_parsed(entry) for entry in given]
    by_name, found = {s.name: s for s in specs}, dict[str, Any]()
    for name, array, said in entries:
        if name not in by_name:
            raise UsageError(f"{said}: the model has no input {name}; it has {', '.join(map(str, specs))}")
        if name in found:
            raise UsageError(f"{said}: {name} is fixed already")
        spec = by_name[name]
        fixed = _of_input(array, spec, said)
        if spec.fixed is not None and not np.array_equal(spec.fixed, fixed):
            raise UsageError(f"{said}: the model was written for {name}={shown(spec.fixed)}, and takes no other value")
        found[name] = fixed.tolist()
    return found


def _parsed(entry: str) -> tuple[str, np.ndarray, str]:
    name, _, text = entry.rpartition("=")
    said = f"--fix {entry}"
    numbers = [_number(part.strip()) for part in text.split(",")]
    if not name or any(n is None for n in numbers):
        raise UsageError(f"{said}: give INPUT=VALUE with a number, true or false, or several with commas between them")
    return name, np.array(numbers), said


def _number(text: str) -> int | float | bool | None:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _of_input(array: np.ndarray, spec: InputSpec, said: str) -> np.ndarray:
    """``array`` in the type and the shape of an input; one number fills it. Raises UsageError."""
    if spec.dtype.kind not in "fiub":
        raise UsageError(f"{said}: input {spec} takes no numbers")
    if spec.dims is None or any(isinstance(d, str) for d in spec.dims):
        missing = " ".join(f"--bind {d}=N" for d in spec.dims or () if isinstance(d, str))
        what = f"give {missing} as well" if missing else "its shape is not known"
        raise UsageError(f"{said}: input {spec} has no fixed size: {what}")
    shape = tuple(d for d in spec.dims if isinstance(d, int))
    count = math.prod(shape)
    if array.size not in (1, count) or not count or count > _MOST or array.dtype.kind not in "fiub":
        many = f"; an input of more than {_MOST} is data" if count > _MOST else ""
        numbers = "one number" if count == 1 else f"{count} numbers, or one for all of them"
        raise UsageError(f"{said}: input {spec} takes {numbers}{many}")
    with np.errstate(all="ignore"):
        cast = array.astype(spec.dtype)
    exact = np.isfinite(cast).all() if spec.dtype.kind == "f" else np.array_equal(cast, array)
    if not exact:
        raise UsageError(f"{said}: input {spec} cannot hold it")
    return np.array(np.broadcast_to(cast.reshape(shape if array.size == count else ()), shape))
