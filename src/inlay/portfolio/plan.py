"""``fleet.yaml``: models × targets × constraints, with the options of ``inlay tune`` for each."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inlay.errors import UsageError, near
from inlay.files import as_file_name
from inlay.prepare.declare import Option, declared, option_in
from inlay.prepare.options import EFFORTS, MODEL
from inlay.run.call import seconds_of
from inlay.run.options import TuneOptions
from inlay.targets.registry import AUTO, DEFAULT_TARGET
from inlay.yaml_file import read_yaml

_KEYS = ("budget", "defaults", "models", "targets", "constraints")
_OF_THE_FLEET = ("out", "ray", "device", "restart", "progress", "before_s")
"""Options of ``tune`` that the fleet gives itself."""
_LONGEST_NAME = 100  # characters of a folder's name: file systems take 255 bytes


@dataclass(frozen=True)
class Entry:
    """One run of a fleet."""

    name: str  # of its folder
    options: Mapping[str, Any]  # of `tune`, the budget aside
    most_s: float = math.inf  # seconds that it may have in all

    @property
    def model(self) -> str:
        """The model as it was named."""
        return str(self.options["model"])

    @property
    def target(self) -> str:
        """The target as it was named."""
        return str(self.options["target"])

    @property
    def digest(self) -> str:
        """Of what its result depends on: the options, and the files that they name as they are now."""
        stamps = [_stamp(value) for value in self.options.values() if isinstance(value, str)]
        text = json.dumps([{k: repr(v) for k, v in sorted(self.options.items())}, stamps])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class FleetPlan:
    """What a fleet is asked for."""

    entries: tuple[Entry, ...]  # the runs, in order
    budget_s: float | None = None  # seconds for all of them; None for no limit

    @property
    def files(self) -> list[str]:
        """Everything that options name, files among them."""
        return [value for entry in self.entries for value in entry.options.values() if isinstance(value, str)]


def read_plan(path: Path) -> FleetPlan:
    """The plan in a YAML file; paths in it are relative to where the command runs.

    Raises:
        NoSuchFile: it does not exist.
        UsageError: it is not YAML, or says something that cannot be done; nothing of it is looked up on disk.
    """
    found = read_yaml(path)
    if not isinstance(found, dict) or not found.get("models"):
        raise UsageError(f"{path} is not a fleet: expected models, as in 'models: [a.onnx, b.onnx]'")
    try:
        for key in found:
            if key not in _KEYS:
                raise UsageError(f"a fleet has no {key}{near(key, _KEYS)}")
        defaults = {"target": DEFAULT_TARGET, **_read(found.get("defaults") or {}, "defaults")}
        models, targets = _listed(found, "models", "model"), _listed(found, "targets", "target")
        constraints = _listed(found, "constraints")
        runs = [{**defaults, **m, **t, **c} for m, t, c in product(models, targets, constraints)]
        return FleetPlan(tuple(map(_entry, _names(runs, len(constraints)), runs)), _seconds(found.get("budget")))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _listed(found: Mapping[str, Any], name: str, bare: str = "") -> list[dict[str, Any]]:
    """The options in a list of the plan, or none; a bare name in it stands for the option ``bare``."""
    listed = found.get(name)
    if listed is None:
        return [{}]
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"{name} is a list")
    parts = []
    for number, item in enumerate(listed, 1):
        where, given = f"{name}, number {number}", {bare: item} if bare and isinstance(item, str) else item
        if bare and isinstance(given, dict) and not isinstance(given.get(bare), str):
            raise UsageError(f"{where}: give the {bare} by name")
        parts.append(_read(given, where))
    return parts


@cache
def _known() -> Mapping[str, tuple[str, str]]:
    """Names of options on the command line with the option of ``tune``, and its part where several make one."""

    def flags() -> Iterator[tuple[str, tuple[str, str]]]:
        yield from (("model", ("model", "")), ("effort", ("effort", "")))
        for name, parameter in declared(TuneOptions).items():
            option = option_in(parameter.annotation)
            if name in _OF_THE_FLEET or option is None or option.type is None:
                continue
            for flag in () if option.fields else option.flags or (f"--{name.replace('_', '-')}",):
                yield flag.lstrip("-"), (name, "")
            for part, shown in option.fields:
                yield shown.flags[0].lstrip("-"), (name, part)

    return MappingProxyType(dict(flags()))


def _read(given: object, where: str) -> dict[str, Any]:
    """Options by the names of ``tune``, parts of one that several make under its name. Raises UsageError."""
    if not isinstance(given, dict):
        raise UsageError(f"{where}: expected options with their values, as in 'min-sqnr: 30'")
    values: dict[str, Any] = {}
    for key, value in given.items():
        flag = str(key).replace("_", "-")
        if flag not in _known():
            raise UsageError(f"{where}: tune has no option {key}{near(flag, _known())}")
        name, part = _known()[flag]
        values[name] = {**values.get(name, {}), part: value} if part else value
    return values


def _entry(name: str, options: Mapping[str, Any]) -> Entry:
    given = dict(options)
    try:
        effort, budget = given.pop("effort", None), given.pop("budget", None)
        if effort is not None:
            if not isinstance(effort, str) or effort not in EFFORTS:
                raise UsageError(f"effort {effort}: choose from {', '.join(EFFORTS)}")
            budget = EFFORTS[effort]["budget"] if budget is None else budget
        given = {key: _value(key, value) for key, value in given.items()}
        if not isinstance(given["target"], str) or given["target"] == AUTO:
            raise UsageError("one target for each run: name them under targets")
        TuneOptions(**{key: value for key, value in given.items() if key != "model"})
        most_s = _seconds(budget)
        return Entry(name, MappingProxyType(given), math.inf if most_s is None else most_s)
    except UsageError as error:
        raise UsageError(f"{options.get('model', name)}: {error}") from None


def _value(name: str, value: Any) -> Any:
    """An option as Python takes it, from what a file says. Raises UsageError."""
    option = MODEL if name == "model" else _option(name)
    if isinstance(value, dict) and not (option.repeated or option.fields):
        raise UsageError(f"{name.replace('_', '-')} takes one value")
    if option.fields and option.type is not None:
        return option.type(**value)
    if option.repeated and name != "target" and isinstance(value, (str, int, float)):
        return [str(value)]
    return not value if option.negated else value


def _option(name: str) -> Option:
    option = option_in(declared(TuneOptions)[name].annotation)
    assert option is not None
    return option


def _seconds(budget: object) -> float | None:
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, (str, int, float))):
        raise UsageError("budget is a time, as in 90s, 10m, 1h30m, or none")
    return seconds_of(budget)


def _names(runs: Sequence[Mapping[str, Any]], constraints: int) -> list[str]:
    """A folder's name for each run: the model's, where need be with the folder that it is in; target; a number."""
    models = list(dict.fromkeys(str(run.get("model", "")) for run in runs))
    stems = {model: Path(model).stem for model in models}
    several = {stem for stem in stems.values() if list(stems.values()).count(stem) > 1} if len(models) > 1 else set()
    found: list[str] = []
    taken: dict[str, int] = {}
    for number, run in enumerate(runs):
        model = str(run.get("model", ""))
        stem = f"{Path(model).parent.name}-{stems[model]}" if stems[model] in several else stems[model]
        constraint = f"-{number % constraints + 1}" if constraints > 1 else ""
        name = as_file_name(f"{stem}-{run['target']}").strip(".-")[:_LONGEST_NAME] + constraint
        taken[name] = taken.get(name, 0) + 1
        found.append(name if taken[name] == 1 else f"{name}-again-{taken[name]}")
    return found


def _stamp(path: str) -> tuple[int, int] | None:
    """Size and time of the last change of a file, if it is one."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns
