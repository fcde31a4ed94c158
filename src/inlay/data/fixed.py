"""Inputs that the user fixed to a value: the model says so in its metadata, and samples need not hold them.

``--fix`` writes the same entry into the model in memory that the written file keeps, so that a file which was made for
one value is read as one ever after: samples that hold another value are refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

FIXED = "inlay.fixed"
"""The entry of a model's metadata that holds the values of its fixed inputs, as JSON: nested lists by name."""


def fixed_values(model: ir.Model) -> dict[str, Any]:
    """What a model says its inputs are fixed to, by name; nothing where the entry is another tool's, or damaged."""
    try:
        said = json.loads(model.metadata_props.get(FIXED, "{}"))
    except (ValueError, RecursionError):
        return {}
    return {str(name): value for name, value in said.items()} if isinstance(said, dict) else {}


def fixed_array(value: object, dtype: np.dtype[Any], dims: Sequence[int | str] | None) -> np.ndarray | None:
    """A value of the metadata as the array that the input takes; None where it is none."""
    try:
        array = np.asarray(value)
        fits = array.dtype.kind in "fiub" and (
            dims is None
            or (
                array.ndim == len(dims)
                and all(isinstance(d, str) or d == n for d, n in zip(dims, array.shape, strict=True))
            )
        )
        return array.astype(dtype) if fits else None
    except (ValueError, OverflowError):
        return None


def shown(array: np.ndarray) -> str:
    """A value for people, as ``--fix`` takes it."""
    numbers = [str(n).lower() for n in array.reshape(-1).tolist()]
    return ",".join(numbers) if len(numbers) <= 8 else ",".join(numbers[:8]) + ",…"
