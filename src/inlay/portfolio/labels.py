"""Several targets by label, from what users write; which of those that are installed can be measured."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from inlay.errors import InlayError, UsageError
from inlay.targets.base import OptionValue, TargetSpec, lacks_of
from inlay.targets.registry import AUTO, available, create, describe, in_float32, options_of


def targets_of(
    targets: Sequence[str | TargetSpec], given: Sequence[str] | Mapping[str, OptionValue], threads: int
) -> tuple[Mapping[str, TargetSpec], Mapping[str, str] | None]:
    """The targets that a call asks for, by label; with ``auto`` also those that cannot be used, with the reason.

    Args:
        targets: several, or :data:`~inlay.targets.registry.AUTO` alone.
        given: options by name, or as ``NAME=VALUE``.

    Raises:
        UsageError: no such target or option.
    """
    entries = [f"{k}={v}" for k, v in given.items()] if isinstance(given, Mapping) else given
    if list(targets) == [AUTO]:
        return measurable(entries, threads)
    if AUTO in targets or not targets:
        raise UsageError(f"--target: give targets, or {AUTO} alone")
    return labelled(targets, entries, threads), None


def measurable(given: Sequence[str], threads: int) -> tuple[dict[str, TargetSpec], dict[str, str]]:
    """The installed targets whose latencies can be measured without further options, and why others are left out.

    One that computes float32 operators in fewer bits is there a second time, as it computes them in float32.

    Whether a runtime works shows when its process starts. Estimates are not compared with measurements.

    Args:
        given: options as ``NAME=VALUE`` or ``TARGET.NAME=VALUE``.
    """
    specs: dict[str, TargetSpec] = {}
    others: dict[str, str] = {}
    for name in available():
        try:
            takes = options_of(name)
            spec = describe(name, _own(name, given, available(), takes), threads if "threads" in takes else None)
            target = create(spec)
            if target.deterministic:
                continue
            target.fingerprint()
            if "latency" in lacks_of(target):
                continue
            specs[name] = spec
            exact = in_float32(spec)
            if exact is not None:
                changed = {k: v for k, v in exact.options.items() if k not in spec.options}
                specs[f"{name} {_options(changed)}"] = exact
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
        plain = isinstance(target, str)
        spec = describe(name, own, threads if plain else None, {} if isinstance(target, str) else target.options)
        label = name if names.count(name) == 1 else f"{name} {_options(spec.options)}".strip()
        if label in specs:
            raise UsageError(f"--target {name} is given twice with the same options")
        specs[label] = spec
    _refuse_idle(given, names)
    return specs


def _options(options: Mapping[str, OptionValue]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(options.items()))


def _own(name: str, given: Sequence[str], names: Iterable[str], takes: Container[str]) -> list[str]:
    """The options that are meant for ``name``: named with it, or plain ones that it takes."""
    parts = [_parts(entry, names) for entry in given]
    return [o for target, o in parts if target == name or (target is None and o.partition("=")[0] in takes)]


def _parts(entry: str, names: Iterable[str]) -> tuple[str | None, str]:
    """The target that an option is named with, or None, and the option."""
    target = next((n for n in names if entry.startswith(f"{n}.")), None)
    return target, entry if target is None else entry.removeprefix(f"{target}.")


def _refuse_idle(given: Sequence[str], names: Sequence[str]) -> None:
    for entry in given:
        target, option = _parts(entry, names)
        if target is None and not any(option.partition("=")[0] in options_of(n) for n in names):
            raise UsageError(f"--target-option {entry}: none of the targets {', '.join(names)} takes it")
