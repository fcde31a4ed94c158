"""`inlay targets`: what is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inlay.errors import InlayError, UsageError
from inlay.targets.base import Installs, TargetSpec
from inlay.targets.registry import available, constructor, create, options_of, remark_of


@dataclass(frozen=True)
class TargetRow:
    """One installed target."""

    name: str  # of its entry point
    facts: Mapping[str, str]  # what measurements on it depend on
    problem: str = ""  # why it cannot be used here, or not without options
    # the names of its options, each with its default as text; without one where it must be given
    options: Sequence[str] = ()
    remark: str = ""  # what else there is to know


def list_targets() -> list[TargetRow]:
    """List every installed target."""
    return [_target_row(name) for name in available()]


def install(name: str) -> str:
    """Install what the target ``name`` needs besides Python packages, and say where.

    Raises:
        UsageError: there is no such target, or it needs nothing.
        TargetError: it cannot be installed.
    """
    if name not in available():
        raise UsageError(f"--install {name}: there is no such target; installed are {', '.join(available())}")
    made: object = constructor(name)
    if not isinstance(made, Installs):
        raise UsageError(f"--install {name}: it needs nothing besides Python packages, which pip installs")
    return str(made.install())


def written_options(name: str) -> list[str]:
    """The names of a target's options, each with its default as text. Raises TargetError."""
    return [key if p.default is p.empty else f"{key}={p.default}" for key, p in options_of(name).items()]


def _target_row(name: str) -> TargetRow:
    facts: Mapping[str, str] = {}
    problem, known = "", list[str]()
    try:
        known = written_options(name)
        facts = create(TargetSpec(name)).fingerprint().facts
    except InlayError as error:
        problem = str(error)
    return TargetRow(name, facts, problem, known, remark_of(name))
