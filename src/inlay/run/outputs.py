"""Files that a run leaves: learned patterns, the recipe of what was delivered, and models where users want them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from inlay.errors import UsageError
from inlay.files import replacing
from inlay.model.load import load
from inlay.prepare.candidate_writer import recipe_for
from inlay.prepare.model import PreparedModel
from inlay.regions.cache import PatternCache
from inlay.space.recipe_file import to_text
from inlay.types import Placement


def install(file: Path, path: Path) -> None:
    """Copy a model to ``path`` atomically, external data beside it."""
    for data in load(file).external:
        beside = path.parent / data.relative_to(file.parent.resolve())
        if data.resolve() != beside.resolve():
            beside.parent.mkdir(parents=True, exist_ok=True)
            with replacing(beside) as fresh:
                shutil.copyfile(data, fresh)
    with replacing(path) as fresh:
        shutil.copyfile(file, fresh)


def save_patterns(path: Path, learned: PatternCache) -> None:
    """Write what a run learned, merged with what the pattern cache at ``path`` holds."""
    if path.exists():
        with contextlib.suppress(UsageError):  # a damaged cache is replaced
            learned.merge(PatternCache.load(path))
    learned.save(path)


def write_recipe(
    path: Path, prepared: PreparedModel, placement: Placement | None, tuned_for: Mapping[str, str]
) -> None:
    """Write the rules that give ``placement`` on this model; none for a given file, which has qparams of its own."""
    if placement is None:
        path.unlink(missing_ok=True)
        return
    with replacing(path) as fresh:
        recipe = replace(recipe_for(prepared, placement), tuned_for=tuned_for)
        fresh.write_text(to_text(recipe), encoding="utf8")


def publish(made: Path, out: Path) -> None:
    """Move the model to ``out``, and the file with its weights beside it where there is one."""
    with replacing(out) as fresh:
        fresh.write_bytes(made.read_bytes())
    data_file = made.with_name(made.name + ".data")
    if data_file.exists():
        with replacing(out.with_name(data_file.name)) as fresh:
            fresh.write_bytes(data_file.read_bytes())
