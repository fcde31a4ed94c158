"""Find targets by name, through the entry points of all installed packages."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from inlay.errors import TargetError, UsageError
from inlay.quant.rewrite import Rewrite
from inlay.targets.base import Target, TargetSpec

GROUP = "inlay.targets"
DEFAULT_TARGET = "ort-cpu"
"""What models are tuned for where nothing else is asked for: its runtime is a dependency of Inlay."""


def available() -> Mapping[str, EntryPoint]:
    """Every target's entry point by name, sorted."""
    return {e.name: e for e in sorted(entry_points(group=GROUP), key=lambda e: e.name)}


@lru_cache(maxsize=1)
def known_rewrites() -> tuple[Rewrite[Any], ...]:
    """The rewrites of every installed target: a model read back may have been written for any of them."""
    found: dict[str, Rewrite[Any]] = {}
    for name in available():
        with contextlib.suppress(Exception):  # a target that cannot be loaded here must not stop the run of another
            found.update((r.digest, r) for r in create(TargetSpec(name)).rewrites())
    return tuple(found.values())


def takes_option(name: str, option: str) -> bool:
    """Whether the constructor of the target ``name`` has a parameter ``option``.

    Raises:
        TargetError: its runtime cannot be loaded.
    """
    return option in inspect.signature(_constructor(available()[name])).parameters


def create(spec: TargetSpec) -> Target:
    """The target that ``spec`` describes.

    Raises:
        UsageError: no such target, or options that it does not take.
        TargetError: its runtime cannot be loaded.
    """
    found = available().get(spec.name)
    if found is None:
        raise UsageError(f"there is no target {spec.name}; installed are {', '.join(available())}")
    make = _constructor(found)
    try:
        target: Target = make(**spec.options)
    except TypeError as error:
        raise UsageError(f"target {spec.name}: {error}") from error
    return target


def _constructor(found: EntryPoint) -> Callable[..., Target]:
    try:
        make: Callable[..., Target] = found.load()
    except ImportError as error:
        raise TargetError(f"target {found.name} cannot be loaded: {error}") from error
    return make
