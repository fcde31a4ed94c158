"""Targets by label, from what users write; which of those that are installed can be measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from inlay.errors import InlayError, UsageError
from inlay.targets.base import OptionValue, OwnPrecision, TargetSpec, lacks_of
from inlay.targets.registry import available, create, describe, options_of, target_of

AUTO = "auto"
"""In place of a target: whichever of those that are installed is the fastest."""


def targets_of(
    target: str | TargetSpec | Sequence[str | TargetSpec],
    given: Sequence[str] | Mapping[str, OptionValue],
    threads: int,
) -> tuple[Mapping[str, TargetSpec], Mapping[str, str] | None]:
    """The targets that a call asks for, by label; with :data:`AUTO` also those that cannot be used, with the reason.

    Args:
        target: one or several, or :data:`AUTO`.
        given: options by name, or as ``NAME=VALUE``.
        threads: for those that take them.

    Raises:
        UsageError: no such target or option.
    """
    several = [target] if isinstance(target, (str, TargetSpec)) else list(target)
    if several == [AUTO] or len(several) > 1:
        entries = [f"{k}={v}" for k, v in given.items()] if isinstance(given, Mapping) else list(given)
        if AUTO not in several:
            return labelled(several, entries, threads), None
        if len(several) == 1:
            return measurable(entries, threads)
    if len(several) != 1:
        raise UsageError(f"--target: give targets, or {AUTO} alone")
    (only,) = several
    return {"": target_of(only, given, threads)}, None


def measurable(given: Sequence[str], threads: int) -> tuple[dict[str, TargetSpec], dict[str, str]]:
    """The installed targets whose latencies can be measured without further options, and why others are left out.

    One that computes float32 operators in fewer bits is there a second time, as it computes them in float32.

    Whether a runtime works shows when its process starts. Estimates are not compared with measurements.

    Args:
        given: options as ``NAME=VALUE`` or ``TARGET.NAME=VALUE``.
        threads: for those that take them.
    """
    specs: dict[str, TargetSpec] = {}
    others: dict[str, str] = {}
    for name in available():
        try:
            takes = options_of(name)
            spec = describe(name, _own(name, given, list(available()), takes), threads if "threads" in takes else None)
            target = create(spec)
            if target.deterministic:
                continue
            target.fingerprint()
            if "latency" in lacks_of(target):
                continue
            specs[name] = spec
            own = OwnPrecision.of(target)
            if own is not None and not own.exact.keys() & spec.options.keys():  # else it was asked for
                exact = TargetSpec(name, {**spec.options, **own.exact})
                specs[f"{name} {_options(own.exact)}"] = exact
        except InlayError as error:
            others[name] = str(error)
    _refuse_idle(given, list(dict.fromkeys(spec.name for spec in specs.values())))
    return specs, others


def labelled(targets: Sequence[str | TargetSpec], given: Sequence[str], threads: int | None) -> dict[str, TargetSpec]:
    """Targets by label: its name, and its options where a name stands twice.

    Raises:
        UsageError: no such target or option, or a target stands twice with the same options.
    """
    names = [t if isinstance(t, str) else t.name for t in targets]
    specs: dict[str, TargetSpec] = {}
    for target, name in zip(targets, names, strict=True):
        own = _own(name, given, names, options_of(name) if name in available() else {})
        base = {} if isinstance(target, str) else target.options
        spec = describe(name, own, threads if isinstance(target, str) else None, base)
        plain = name if names.count(name) == 1 else f"{name} {_options(spec.options)}".strip()
        if plain in specs:
            raise UsageError(f"--target {name} is given twice with the same options")
        specs[plain] = spec
    _refuse_idle(given, names)
    return specs


def folder_of(label: str) -> str:
    """Name of the folder of a target's own run."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", label).lstrip(".")


def _options(options: Mapping[str, OptionValue]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(options.items()))


def _own(name: str, given: Sequence[str], names: Sequence[str], takes: Mapping[str, object]) -> list[str]:
    """The options that are meant for ``name``: named with it, or plain ones that it takes."""
    found = []
    for entry in given:
        target, option = _parts(entry, names)
        if target == name or (target is None and option.partition("=")[0] in takes):
            found.append(option)
    return found


def _parts(entry: str, names: Sequence[str]) -> tuple[str | None, str]:
    target = next((n for n in names if entry.startswith(f"{n}.")), None)
    return target, entry if target is None else entry.removeprefix(f"{target}.")


def _refuse_idle(given: Sequence[str], names: Sequence[str]) -> None:
    for entry in given:
        target, option = _parts(entry, names)
        if target is None and not any(option.partition("=")[0] in options_of(n) for n in names):
            raise UsageError(f"--target-option {entry}: none of the targets {', '.join(names)} takes it")
