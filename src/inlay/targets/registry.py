"""Find targets by name, through the entry points of all installed packages."""

from __future__ import annotations

import contextlib
import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from inlay.errors import InlayError, TargetError, UsageError, near
from inlay.installed import TARGETS, joined
from inlay.targets.base import (
    HasHeading,
    OptionValue,
    OwnPrecision,
    ReadsIntegers,
    Remarks,
    Target,
    TargetSpec,
    is_estimate,
)

if TYPE_CHECKING:
    from inlay.quant.plain.graph import IntegerOperator


DEFAULT_TARGET = "ort-cpu"
"""What models are tuned for where nothing else is asked for: its runtime is a dependency of Inlay."""
AUTO = "auto"
"""In place of a target: whichever of those that are installed is the fastest."""


def available() -> Mapping[str, EntryPoint]:
    """Every target's entry point by name, sorted."""
    return joined(TARGETS)


@lru_cache(maxsize=1)
def known_operators() -> tuple[IntegerOperator, ...]:
    """The operators on integers of every installed target's runtime, as rows: a model may have been written for any.

    A target that cannot be made here must not stop the run of another; a mistake in its code is a warning.
    """
    found: dict[tuple[str, str], IntegerOperator] = {}
    for name in available():
        try:
            target = create(TargetSpec(name))
            rows = target.integer_operators() if isinstance(target, ReadsIntegers) else ()
            found.update(((r.domain, r.op_type), r) for r in rows)
        except InlayError:  # its runtime is not installed, or it needs options
            pass
        except Exception as error:  # the code of another package
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            what = f"the integer operators of target {name} are not known here: its code fails with {said}"
            warnings.warn(what, stacklevel=2)
    return tuple(found.values())


def options_of(name: str) -> Mapping[str, inspect.Parameter]:
    """The options of the target ``name``: the parameters of its constructor that are text, numbers or switches.

    Raises:
        TargetError: its runtime cannot be loaded.
    """
    parameters = inspect.signature(_constructor(available()[name])).parameters
    return {key: p for key, p in parameters.items() if _kind(p) in _READ}


def remark_of(name: str) -> str:
    """What the target ``name`` says of itself before it is created, where it :class:`Remarks` anything."""
    made = _class_of(name)
    return made.remark if isinstance(made, Remarks) else ""


def _class_of(name: str) -> object:
    """The class of the target ``name``; None where it is not to be had here."""
    with contextlib.suppress(TargetError, KeyError):
        made = _constructor(available()[name])
        return made.func if isinstance(made, partial) else made  # one class may be several targets
    return None


def headings_of(name: str) -> tuple[str, ...]:
    """The facts that the target ``name`` names for its heading; none where it names none, or is not to be had here."""
    made = _class_of(name)
    return made.heading if isinstance(made, HasHeading) else ()


def heading_of(name: str, facts: Mapping[str, str]) -> str:
    """What stands beside the target ``name`` in the heading of a result: its versions, its device, what else decides.

    Which facts these are, a target that :class:`HasHeading` names; for others, or where it is not installed here, they
    are all that are short. Figures that are estimates are called so.

    Args:
        name: as it stands in the entry point.
        facts: of its fingerprint.
    """
    chosen = headings_of(name)
    short = [key for key, value in facts.items() if key not in _UNTOLD and "sha256" not in key and len(value) <= _SHORT]
    told = [f"{key} {facts[key]}" for key in chosen or short if facts.get(key)]
    return ", ".join([*told, *["estimated"] * is_estimate(facts)])


def options_in(name: str, facts: Mapping[str, str]) -> Mapping[str, str]:
    """The facts of the target ``name`` that are its options; none where it is not installed here."""
    with contextlib.suppress(TargetError, KeyError):
        return {key: facts[key] for key in options_of(name) if key in facts}
    return {}


_UNTOLD = {"kind", "unit", "measures"}  # what they say stands elsewhere in a result
_SHORT = 60  # characters of a fact that does not fill a heading by itself


def describe(
    name: str,
    given: Sequence[str] | Mapping[str, OptionValue] = (),
    threads: int | None = None,
    base: Mapping[str, OptionValue] | None = None,
) -> TargetSpec:
    """A target by its name and options as users write them, checked against its constructor.

    Args:
        name: entry point in the group ``inlay.targets``.
        given: values by name, or ``name=value`` entries.
        base: options that ``given`` goes before.
        threads: of the runtime, where the target takes that option; ``given`` goes first. None for its own default.

    Raises:
        UsageError: no such target or option, a value of another kind, or an option that must be given is not.
        TargetError: its runtime cannot be loaded.
    """
    if name not in available():
        names, meant = ", ".join(available()), near(name, available())
        raise UsageError(f"--target {name}: there is no such target; installed are {names}{meant}")
    known = options_of(name)
    options: dict[str, OptionValue] = {}
    for entry in given.items() if isinstance(given, Mapping) else map(_parted, given):
        key, value = entry
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise UsageError(f"--target-option {key}: target {name} does not take it; {has}")
        if key in options:
            raise UsageError(f"--target-option {key} is given twice")
        options[key] = _read(key, value, _kind(known[key])) if isinstance(value, str) else value
    if threads is not None and "threads" in known:
        if threads != 1 and options.get("threads", threads) != threads:
            raise UsageError(f"--threads {threads} contradicts --target-option threads={options['threads']}")
        options.setdefault("threads", threads)
    elif threads not in (None, 1):
        raise UsageError(f"--threads {threads}: target {name} has no threads to choose")
    spec = TargetSpec(name, {**(base or {}), **options})
    _require(spec)
    return spec


def target_of(
    target: str | TargetSpec, given: Sequence[str] | Mapping[str, OptionValue], threads: int | None = None
) -> TargetSpec:
    """One target with its options. Raises UsageError."""
    if isinstance(target, str):
        return describe(target, given, threads)
    return describe(target.name, given, base=target.options) if given else target


def for_processors(spec: TargetSpec, names: Sequence[str]) -> TargetSpec:
    """``spec`` for processors that are not here, by their names; itself for none.

    Raises:
        UsageError: the target knows no others, or one is named by its options already.
    """
    if not names:
        return spec
    if "processor" not in options_of(spec.name):
        able = [name for name in available() if "processor" in _options_or_none(name)]
        raise UsageError(f"--for: target {spec.name} is for the processor here; others are known of {', '.join(able)}")
    if spec.options.get("processor"):
        raise UsageError("--for and --target-option processor=…: give one of them")
    made = TargetSpec(spec.name, {**spec.options, "processor": "+".join(names)})
    create(made)  # which knows their names
    return made


def _options_or_none(name: str) -> Mapping[str, inspect.Parameter]:
    with contextlib.suppress(TargetError):
        return options_of(name)
    return {}


def _require(spec: TargetSpec) -> None:
    missing = [k for k, p in options_of(spec.name).items() if p.default is p.empty and k not in spec.options]
    if missing:
        raise UsageError(f"target {spec.name} needs " + ", ".join(f"--target-option {key}=…" for key in missing))


def _parted(entry: str) -> tuple[str, str]:
    key, equals, value = entry.partition("=")
    if not key or not equals:
        raise UsageError(f"--target-option {entry}: give NAME=VALUE")
    return key, value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


_SWITCH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_READ: Mapping[str, tuple[str, Callable[[str], OptionValue]]] = {
    "str": ("text", str),
    "int": ("a whole number", int),
    "float": ("a finite number", _finite),
    "bool": ("true or false", lambda text: _SWITCH[text.lower()]),
}
"""How the values of options are read, by the annotation of the parameter."""


def _kind(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


def _read(key: str, text: str, kind: str) -> OptionValue:
    wanted, read = _READ[kind]
    try:
        return read(text)
    except (ValueError, KeyError):
        raise UsageError(f"--target-option {key}={text}: give {wanted}") from None


@runtime_checkable
class KnowsDevices(Protocol):
    """A target whose rules and rewrites are those of the processor that measures, which may be another machine's."""

    def on_device(self, facts: Mapping[str, str]) -> Target:
        """The same target where its fingerprint has these facts."""
        ...


@runtime_checkable
class NamesProcessors(Protocol):
    """A target that can be for processors that are not here: its option ``processor`` names one, or more with ``+``."""

    def each_processor(self) -> Mapping[str, Target]:
        """The target for each of them alone, by its name; none where it is for the one that is here."""
        ...


def create(spec: TargetSpec, facts: Mapping[str, str] | None = None) -> Target:
    """The target that ``spec`` describes.

    Args:
        spec: name and options.
        facts: of the fingerprint where it is measured; by default that is here.

    Raises:
        UsageError: no such target, or options that it does not take.
        TargetError: its runtime cannot be loaded.
    """
    found = available().get(spec.name)
    if found is None:
        raise UsageError(f"there is no target {spec.name}; installed are {', '.join(available())}")
    make = _constructor(found)
    _require(spec)
    try:
        target: Target = make(**spec.options)
    except TypeError as error:
        raise UsageError(f"target {spec.name}: {error}") from error
    return target.on_device(facts) if facts is not None and isinstance(target, KnowsDevices) else target


def in_float32(spec: TargetSpec) -> TargetSpec | None:
    """The same target as it computes in float32; None where it does so anyway, or how it computes was asked for.

    Raises what :func:`create` does.
    """
    own = OwnPrecision.of(create(spec))
    if own is None or own.exact.keys() & spec.options.keys():
        return None
    return TargetSpec(spec.name, {**spec.options, **own.exact})


def constructor(name: str) -> Callable[..., Target]:
    """What makes the target ``name``. Raises TargetError where its runtime cannot be loaded."""
    return _constructor(available()[name])


def _constructor(found: EntryPoint) -> Callable[..., Target]:
    try:
        make: Callable[..., Target] = found.load()
    except ImportError as error:
        raise TargetError(f"target {found.name} cannot be loaded: {error}") from error
    except Exception as error:  # a mistake in another package's module
        said = f"{type(error).__name__}: {error}"
        raise TargetError(f"target {found.name} cannot be loaded: {found.value} fails with {said}") from error
    return make
