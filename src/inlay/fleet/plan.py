"""``fleet.yaml``: models × targets × constraints, with the options of ``inlay tune`` for each."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inlay import api
from inlay.errors import UsageError
from inlay.prepare.declare import declared, option_in
from inlay.prepare.options import EFFORTS
from inlay.run.call import seconds_of
from inlay.run.options import TuneOptions
from inlay.targets.registry import DEFAULT_TARGET
from inlay.yaml_file import read_yaml

_KEYS = ("budget", "defaults", "models", "targets", "constraints")
_OF_THE_FLEET = ("out", "ray", "restart", "progress", "before_s")
"""Parameters of ``tune`` that the fleet gives itself."""
_AXES: Mapping[str, str] = MappingProxyType({"models": "model", "targets": "target", "constraints": ""})
"""The lists of a plan, with the option that a bare name in them stands for."""
_LONGEST_NAME = 100
"""Characters of a folder's name: file systems take 255 bytes."""


@dataclass(frozen=True)
class Entry:
    """One run of a fleet.

    Attributes:
        name: of its folder.
        options: of ``tune``, the budget aside.
        most_s: seconds that it may have in all; None for what the fleet has.
    """

    name: str
    options: Mapping[str, Any]
    most_s: float | None = None

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
    """What a fleet is asked for.

    Attributes:
        entries: the runs, in order.
        budget_s: seconds for all of them; None for no limit.
    """

    entries: tuple[Entry, ...]
    budget_s: float | None = None

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
    for key in found:
        if key not in _KEYS:
            raise UsageError(f"{path}: a fleet has no {key}{_near(key, _KEYS)}")
    defaults = _Options(path, "defaults").read(found.get("defaults") or {})
    axes = [_axis(path, found, name) for name in _AXES]
    combined = [_combined(defaults, parts) for parts in product(*axes)]
    names = _names(combined, len(axes[-1]))
    entries = tuple(_entry(path, name, options) for name, options in zip(names, combined, strict=True))
    try:
        return FleetPlan(entries, _seconds(found.get("budget")))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _axis(path: Path, found: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    listed, bare = found.get(name), _AXES[name]
    if listed is None:
        return [{}]
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"{path}: {name} is a list")
    parts: list[Mapping[str, Any]] = []
    for number, item in enumerate(listed, 1):
        where = f"{name}, number {number}"
        if bare and isinstance(item, str):
            item = {bare: item}
        if bare and isinstance(item, dict) and not isinstance(item.get(bare), str):
            raise UsageError(f"{path}: {where}: give the {bare} by name")
        parts.append(_Options(path, where).read(item))
    return parts


@dataclass(frozen=True)
class _Options:
    """Reads options of ``tune`` by their names on the command line; ``where`` is named in errors."""

    path: Path
    where: str
    known: Mapping[str, tuple[str, str]] = field(default_factory=lambda: dict(_known()))

    def read(self, given: object) -> dict[str, Any]:
        """By parameter; parts of a parameter that several options make are under its name. Raises UsageError."""
        if not isinstance(given, dict):
            raise UsageError(f"{self.path}: {self.where}: expected options with their values, as in 'min-sqnr: 30'")
        values: dict[str, Any] = {}
        for key, value in given.items():
            flag = str(key).replace("_", "-")
            if flag not in self.known:
                raise UsageError(f"{self.path}: {self.where}: tune has no option {key}{_near(flag, self.known)}")
            name, part = self.known[flag]
            if part:
                values[name] = {**values.get(name, {}), part: value}
            else:
                values[name] = value
        return values


def _known() -> Iterator[tuple[str, tuple[str, str]]]:
    """Names of options with the parameter of ``tune``, and its part where several options make one."""
    yield "effort", ("effort", "")
    for name, parameter in declared(api.tune).items():
        option = option_in(parameter.annotation)
        if name in _OF_THE_FLEET or option is None or option.type is None:
            continue
        flags = option.flags or (f"--{name.replace('_', '-')}",)
        for flag in () if option.fields else flags:
            yield flag.lstrip("-"), (name, "")
        for part, shown in option.fields:
            yield shown.flags[0].lstrip("-"), (name, part)


def _combined(defaults: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The options of one run: later parts go before earlier ones."""
    options: dict[str, Any] = {"target": DEFAULT_TARGET}
    for part in (defaults, *parts):
        options.update(part)
    return options


def _entry(path: Path, name: str, options: Mapping[str, Any]) -> Entry:
    parameters, given = declared(api.tune), dict(options)
    try:
        effort, budget = given.pop("effort", None), given.pop("budget", None)
        if effort is not None:
            if not isinstance(effort, str) or effort not in EFFORTS:
                raise UsageError(f"effort {effort}: choose from {', '.join(EFFORTS)}")
            budget = EFFORTS[effort]["budget"] if budget is None else budget
        for key, value in given.items():
            option = option_in(parameters[key].annotation)
            assert option is not None
            if isinstance(value, dict) and not (option.repeated or option.fields):
                raise UsageError(f"{key.replace('_', '-')} takes one value")
            if option.fields and option.type is not None:
                given[key] = option.type(**value)
            elif option.negated:
                given[key] = not value
            elif option.repeated and key != "target" and isinstance(value, (str, int, float)):
                given[key] = [str(value)]
        if not isinstance(given["target"], str) or given["target"] == "auto":
            raise UsageError("one target for each run: name them under targets")
        TuneOptions(**{name: value for name, value in given.items() if name != "model"})
        return Entry(name, MappingProxyType(given), _seconds(budget))
    except UsageError as error:
        raise UsageError(f"{path}: {options.get('model', name)}: {error}") from None


def _seconds(budget: object) -> float | None:
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, (str, int, float))):
        raise UsageError("budget is a time, as in 90s, 10m, 1h30m, or none")
    return seconds_of(budget)


def _names(runs: Sequence[Mapping[str, Any]], constraints: int) -> list[str]:
    """A folder's name for each run: the model's, where need be with the folder that it is in; target; a number.

    Args:
        runs: their options, by model, then target, then constraint.
        constraints: how many there are for each model and target.
    """
    models = list(dict.fromkeys(str(run.get("model", "")) for run in runs))
    stems = {model: Path(model).stem for model in models}
    several = {stem for stem in stems.values() if list(stems.values()).count(stem) > 1} if len(models) > 1 else set()
    found: list[str] = []
    taken: dict[str, int] = {}
    for number, run in enumerate(runs):
        model = str(run.get("model", ""))
        stem = f"{Path(model).parent.name}-{stems[model]}" if stems[model] in several else stems[model]
        constraint = f"-{number % constraints + 1}" if constraints > 1 else ""
        name = re.sub(r"[^A-Za-z0-9._=-]+", "-", f"{stem}-{run['target']}").strip(".-")[:_LONGEST_NAME] + constraint
        taken[name] = taken.get(name, 0) + 1
        found.append(name if taken[name] == 1 else f"{name}-again-{taken[name]}")
    return found


def _near(key: object, known: Mapping[str, Any] | Sequence[str]) -> str:
    near = difflib.get_close_matches(str(key), list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _stamp(path: str) -> tuple[int, int] | None:
    """Size and time of the last change of a file, if it is one."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns
