"""The profile that a program tells, as kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from inlay.errors import BadReading
from inlay.targets.attribution import Names
from inlay.targets.base import KernelKind, KernelTime


def read_layers(answer: Mapping[str, Any], names: Names) -> list[KernelTime]:
    """Kernels, with the nodes and values that the program tells, or that its layers' names show.

    Raises:
        BadReading: the answer has no list of layers, or one of them says less than its name and its time.
    """
    rows = answer.get("layers")
    if not isinstance(rows, list):
        raise BadReading("the answer to profile has no list of layers")
    return [_kernel(row, names) for row in rows]


def _kernel(row: Any, names: Names) -> KernelTime:
    try:
        name, op_type, ns = str(row["name"]), str(row.get("op_type", "")), float(row["ms"]) * 1e6
        kind, precision = row.get("kind"), str(row.get("precision", ""))
        nodes, values = tuple(map(str, row.get("nodes", ()))), tuple(map(str, row.get("values", ())))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise BadReading(f"a layer is {str(row)[:200]}: give at least its name and ms ({error!r})") from error
    if kind is not None and kind not in get_args(KernelKind):
        raise BadReading(f"layer {name} is of kind {kind!r}; give {', '.join(get_args(KernelKind))}")
    if not np.isfinite(ns) or ns < 0:
        raise BadReading(f"layer {name} takes {row['ms']} ms")
    if nodes or values:
        told: KernelKind = kind or ("compute" if nodes else "layout")
        return KernelTime(name, op_type or "layer", ns, precision, nodes, names.known(values), told)
    return names.layer(name, op_type or "layer", ns, precision, kind)
