"""Recipes as YAML.

::

    inlay-recipe: 1
    rules:
      - {global: int}                  # the target's usual type; also int8, uint8, int16, uint16, fp8
      - {op_type: Softmax, config: float}
      - {name: "head*", config: {activation: int8, per_channel: false}}
      - {module: backbone/, config: int}
      - {name: "out*", config: {activation: uint16, weight: int8}}    # weights follow activations: it may say so
      - {op_type: MatMul, config: dynamic}    # a precision of the target: ranges found in each inference
      - {op_type: Gemm, config: weight-only}    # the same: weights of 8 bits, activations in float
      - {name: "fc*", config: {weight: int4, block: 32}}    # the same, with a scale for each 32 weights
      - {name: conv7, config: {activation: int, off_zero: true}}    # a rewrite of the target: nonzero zero points
      - {io: float}
    tuned-for: {target: null, cpu: …}    # where a search found it; told where it is applied elsewhere
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from inlay.errors import UsageError
from inlay.space.recipe import BUILTIN, OpConfig, Recipe, RecipeRule, Scope, parse_port
from inlay.space.rules import weight_only
from inlay.types import QType
from inlay.yaml_file import read_yaml

FORMAT, VERSION = "inlay-recipe", 1
TUNED_FOR = "tuned-for"
_TYPES = {t.value: t for t in QType if not t.half}
_HALVES = {t.value: t for t in QType if t.half}
_BLOCKS = {weight_only(t): t for t in QType if t.block}


def find_recipe(source: str | Path | Recipe) -> Recipe:
    """A recipe by name (``full-int8``, ``conv-matmul``), from a file, or as it is.

    Raises:
        UsageError: no such recipe, or the file holds none.
        NoSuchFile: no such file.
    """
    if isinstance(source, Recipe):
        return source
    known = BUILTIN.get(str(source))
    if known is None and not Path(source).exists() and not Path(source).suffix:
        raise UsageError(f"--recipe {source}: there is no such recipe; give {', '.join(BUILTIN)}, or a file")
    return known or load_recipe(Path(source))


def load_recipe(path: Path) -> Recipe:
    """The recipe in a YAML file.

    Raises:
        NoSuchFile: there is no such file.
        UsageError: it is not a recipe.
    """
    try:
        return from_data(read_yaml(path, prefix="--recipe "))
    except ValueError as error:
        raise UsageError(f"--recipe {path}: {error}") from error


def to_text(recipe: Recipe) -> str:
    """The recipe as YAML."""
    return yaml.safe_dump(to_data(recipe), sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)


def to_data(recipe: Recipe) -> dict[str, Any]:
    """Plain data."""
    tuned = {TUNED_FOR: dict(recipe.tuned_for)} if recipe.tuned_for else {}
    return {FORMAT: VERSION, **tuned, "rules": [_rule_data(r) for r in recipe.rules]}


def from_data(data: object) -> Recipe:
    """Read what :func:`to_data` wrote. Raises ValueError or UsageError where it is something else."""
    if not isinstance(data, Mapping) or data.get(FORMAT) != VERSION:
        raise ValueError(f"it is not an Inlay recipe: it lacks the line '{FORMAT}: {VERSION}'")
    extra = [str(k) for k in data if k not in (FORMAT, TUNED_FOR, "rules")]
    if extra:
        raise ValueError(f"unknown entry {extra[0]!r}; a recipe holds rules")
    rules = data.get("rules") or []
    if not isinstance(rules, list):
        raise ValueError("its rules are not a list")
    tuned = data.get(TUNED_FOR) or {}
    if not isinstance(tuned, Mapping):
        raise ValueError(f"{TUNED_FOR} is {tuned!r}, not names with values")
    known = {str(name): str(value) for name, value in tuned.items()}
    return Recipe(tuple(_rule(i, r) for i, r in enumerate(rules, 1)), known)


def _rule_data(rule: RecipeRule) -> dict[str, Any]:
    config = _config_data(rule.config)
    if rule.scope is Scope.GLOBAL or (rule.scope is Scope.IO and rule.pattern == "*"):
        data = {rule.scope.value: config}
    else:
        data = {rule.scope.value: rule.pattern, "config": config}
    return {**data, "optional": True} if rule.optional else data


def _config_data(config: OpConfig | None) -> Any:
    if config is None:
        return "float"
    if config.form:
        qtype = _BLOCKS.get(config.form)
        return config.form if qtype is None else {"weight": qtype.element, "block": qtype.block}
    activation = "int" if config.activation is None else config.activation.value
    data: dict[str, Any] = {"activation": activation}
    if config.per_channel is not None:
        data["per_channel"] = config.per_channel
    data.update((name.replace(" ", "_"), True) for name in sorted(config.rewrites))
    return data if len(data) > 1 else activation


def _rule(number: int, data: object) -> RecipeRule:
    scopes = [s for s in Scope if isinstance(data, Mapping) and s.value in data]
    if not isinstance(data, Mapping) or len(scopes) != 1:
        raise ValueError(f"rule {number} must name exactly one of {', '.join(s.value for s in Scope)}")
    extra = [str(k) for k in data if k not in (scopes[0].value, "config", "optional")]
    if extra:
        raise ValueError(f"rule {number} has an unknown entry {extra[0]!r}")
    scope, value = scopes[0], data[scopes[0].value]
    if "config" in data:
        pattern, config = value, data["config"]
    elif scope in (Scope.GLOBAL, Scope.IO):
        pattern, config = "*", value
    else:
        raise ValueError(f"rule {number} lacks its config: float, int, int8, dynamic, …")
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(f"rule {number}: {pattern!r} is not a pattern")
    made = _config(number, config)
    if scope is Scope.PORT:
        parse_port(pattern)
        if made is not None and made.form in _HALVES:  # of a port it is a type, and of an operator a form
            made = OpConfig(_HALVES[made.form])
    return RecipeRule(scope, pattern, made, data.get("optional") is True)


def _config(number: int, data: object) -> OpConfig | None:
    if data is None or data == "float":
        return None
    if isinstance(data, Mapping) and "activation" not in data and ("weight" in data or "block" in data):
        return OpConfig(form=_weight_only(number, data))
    if isinstance(data, Mapping):
        _check_weight(number, data)
        rewrites = {str(k): v for k, v in data.items() if k not in ("activation", "weight", "per_channel")}
        for key, wanted in rewrites.items():
            if wanted is not True:
                raise ValueError(f"rule {number}: {key} is {wanted!r}; a rewrite is selected by true, or left out")
        per_channel = data.get("per_channel")
        if per_channel not in (None, True, False):
            raise ValueError(f"rule {number}: per_channel is {per_channel!r}, neither true nor false")
        names = frozenset(key.replace("_", " ") for key in rewrites)
        return OpConfig(_qtype(number, data.get("activation", "int")), per_channel, names)
    if isinstance(data, str) and not data.startswith(("int", "uint")) and data not in _TYPES:
        return OpConfig(form=data)  # of the target, which is not known yet
    return OpConfig(_qtype(number, data))


def _check_weight(number: int, data: Mapping[str, object]) -> None:
    """Raise ValueError where a weight is to have another type than it has beside those activations."""
    activation = _qtype(number, data["activation"]) if "activation" in data else None
    usual = activation.value if activation is not None and activation.floating else QType.INT8.value
    if data.get("weight", usual) != usual:
        raise ValueError(
            f"rule {number}: weights beside {data['activation']} activations are {usual}, not {data['weight']!r}"
        )


def _weight_only(number: int, data: Mapping[str, object]) -> str:
    """The form of ``{weight: int4, block: 32}``: weights of that type, activations in float."""
    extra = [str(k) for k in data if k not in ("weight", "block")]
    if extra:
        raise ValueError(f"rule {number}: {extra[0]} has no effect beside weight and block")
    weight, block = data.get("weight"), data.get("block", 0)
    found = (t for t in (QType.INT8, *_BLOCKS.values()) if t.element == weight and t.block == block)
    qtype = next(found, None)
    if qtype is None:
        known = ", ".join(f"{t.element} with block {t.block}" for t in _BLOCKS.values())
        asked = f"{weight!r} with block {block!r}" if block else repr(weight)
        raise ValueError(f"rule {number}: weights are no {asked}; give int8 alone, {known}")
    return weight_only(qtype)


def _qtype(number: int, data: object) -> QType | None:
    if data == "int":
        return None
    if not isinstance(data, str) or data not in _TYPES:
        raise ValueError(f"rule {number}: {data!r} is not a type; give float, int, {', '.join(_TYPES)}")
    return _TYPES[data]
