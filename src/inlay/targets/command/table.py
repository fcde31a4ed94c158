"""Rules of a runtime as a YAML file: what it runs in low precision, in the words of :mod:`inlay.space.rules`.

::

    inlay-rules: 1
    activation: uint8                # type of activations; also int8, int16, ...
    fast: {uint16: [Conv, Gemm]}     # operators with fast kernels for a further type: a search tries it, too
    share: [Concat]                  # its inputs and outputs must have the same scale
    operators:
      Conv: {weight: 1, bias: 2, conditions: [constant_weight], source: "manual, page 12"}
      Add: {activations: all}
      MaxPool: {moves_data: true}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from inlay.errors import UsageError
from inlay.space.rules import Needs, OpRule, Rules
from inlay.targets import conditions
from inlay.types import ANY_INT8, QType
from inlay.yaml_file import read_yaml

FORMAT, VERSION = "inlay-rules", 1
_TYPES = {t.value: t for t in QType if not t.half}
_HALVES = {t.value: t for t in QType if t.half}
_NEEDS = {n.value: n for n in Needs}
_CONDITIONS = {
    name: found
    for name, found in vars(conditions).items()
    if callable(found) and found.__module__ == conditions.__name__
}


def load_rules(path: Path) -> Rules:
    """The rules in a YAML file.

    Raises:
        NoSuchFile: there is no such file.
        UsageError: it holds no rules.
    """
    data = read_yaml(path, prefix="rules ")
    try:
        return _rules(data, path.name)
    except ValueError as error:
        raise UsageError(f"rules {path}: {error}") from error


def _rules(data: object, source: str) -> Rules:
    if not isinstance(data, Mapping) or data.get(FORMAT) != VERSION:
        raise ValueError(f"it holds no rules: it lacks the line '{FORMAT}: {VERSION}'")
    operators = data.get("operators")
    if not isinstance(operators, Mapping) or not operators:
        raise ValueError("it lists no operators")
    given = {str(k): v for k, v in data.items() if k not in (FORMAT, "operators")}
    ops = {str(op): _row(str(op), row, source) for op, row in operators.items()}
    found = _fields("the table", given, _RULES)
    limit = found.pop("weight_limit", 127)
    return Rules(ops=ops, exact_limit=limit if limit < 127 else ANY_INT8, **found)


def _row(op_type: str, row: object, source: str) -> OpRule:
    if row is not None and not isinstance(row, Mapping):
        raise ValueError(f"{op_type} is {row!r}; give its fields, or {{}}")
    return OpRule(op_type, **{"source": source, **_fields(op_type, {str(k): v for k, v in (row or {}).items()}, _ROW)})


def _fields(where: str, given: Mapping[str, Any], known: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    found = {}
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{where} has an unknown entry {key!r}; it may have {', '.join(known)}")
        try:
            found[key] = known[key](value)
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{where}: {key} cannot be {value!r}") from None
    missing = _REQUIRED - set(found) if known is _RULES else set()
    if missing:
        raise ValueError(f"{where} lacks {', '.join(sorted(missing))}")
    return found


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _slot(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value


def _slots(value: Any) -> tuple[int, ...] | None:
    if value == "all":
        return None
    found = tuple(map(_slot, value))
    if not found or len(set(found)) < len(found):
        raise ValueError
    return found


def _names(value: Any) -> frozenset[str]:
    if not isinstance(value, list):
        raise ValueError
    return frozenset(map(str, value))


_ROW: Mapping[str, Callable[[Any], Any]] = {
    "activations": _slots,
    "weight": _slot,
    "bias": _slot,
    "output": lambda value: _NEEDS[value],
    "moves_data": _switch,
    "propagates_qdq": _switch,
    "slowdown_after_float": float,
    "conditions": lambda value: tuple(_CONDITIONS[name] for name in value),
    "source": str,
}
_RULES: Mapping[str, Callable[[Any], Any]] = {
    "activation": lambda value: _TYPES[value],
    "weight": lambda value: _TYPES[value],
    "weight_limit": _slot,
    "per_channel": _switch,
    "absorbed": _names,
    "share": _names,
    "symmetric_activations": _switch,
    "fuses_residual_add": _switch,
    "other_activations": lambda value: frozenset(_TYPES[name] for name in value),
    "fast": lambda value: {_TYPES[name]: _names(ops) for name, ops in dict(value).items()},
    "halves": lambda value: frozenset(_HALVES[name] for name in value),
    "requantize_cost": float,
    "unfold_cost": float,
    "product_cost": float,
}
"""How the fields of a table are read."""
_REQUIRED = {
    f.name for f in fields(Rules) if f.name in _RULES and f.default is MISSING and f.default_factory is MISSING
}
