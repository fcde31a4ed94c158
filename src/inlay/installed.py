"""What is installed: the version of Inlay, and what joins it through entry points.

Wings of Inlay (region patterns, explanations, reports, TOSA, Ray …) join as other packages may. No room that every run
needs imports a wing: it asks here, by group and name, and goes without what is not there. The groups:

- ``inlay.targets``: targets by name (:mod:`inlay.targets.base`).
- ``inlay.strategies``: what joins a search (:class:`~inlay.run.joined.JoinedStrategy`).
- ``inlay.executors``: labs elsewhere, by the option that asks for them (:class:`~inlay.measure.lab.OpenLab`).
- ``inlay.several_targets``: how several targets are named (``targets``), tuned for (``tune``), told of (``verdict``);
  and how several models of one program are tuned (``pipeline``).
- ``inlay.commands``: commands of ``inlay``, as functions or groups of typer (:mod:`inlay.cli.commands`).
- ``inlay.after_tune``: called with the folder of a finished run; what they return is a note, if it is not empty.
- ``inlay.models``: what makes an ONNX model of an object that is none, and samples that fit it, by the package that
  defines the object's type (:func:`inlay.run.call.as_model`).
- ``inlay.names``: names of the package ``inlay`` that a wing defines; ``inlay.former_names``: those that moved there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version

try:
    __version__ = version("inlay")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

TARGETS = "inlay.targets"
STRATEGIES = "inlay.strategies"
EXECUTORS = "inlay.executors"
SEVERAL_TARGETS = "inlay.several_targets"
COMMANDS = "inlay.commands"
AFTER_TUNE = "inlay.after_tune"
MODELS = "inlay.models"
NAMES = "inlay.names"
FORMER_NAMES = "inlay.former_names"


def joined(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of ``group`` in all packages on the import path, by name, sorted."""
    return _joined(tuple(sys.path)).get(group, {})


@lru_cache(maxsize=1)
def _joined(path: tuple[str, ...]) -> Mapping[str, Mapping[str, EntryPoint]]:
    """By group; reading the metadata of all packages takes tens of milliseconds."""
    found = entry_points()
    groups = (TARGETS, STRATEGIES, EXECUTORS, SEVERAL_TARGETS, COMMANDS, AFTER_TUNE, MODELS, NAMES, FORMER_NAMES)
    return {group: {e.name: e for e in sorted(found.select(group=group), key=lambda e: e.name)} for group in groups}
