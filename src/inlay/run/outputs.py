"""Files that a run leaves: the recipe of what was delivered, and models where users want them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from inlay.files import replacing
from inlay.model.load import load
from inlay.prepare.candidate_writer import recipe_for
from inlay.prepare.model import PreparedModel
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
    """Copy a model that was written here to ``out`` atomically, and the file with its weights beside it before."""
    data_file = made.with_name(made.name + ".data")
    pairs = [(data_file, out.with_name(data_file.name))] if data_file.exists() else []
    for source, place in [*pairs, (made, out)]:
        with replacing(place) as fresh:
            shutil.copyfile(source, fresh)
