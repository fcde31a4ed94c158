"""What stays in float32 of a model that computes in half precision on its target, and what of it the samples show."""

from __future__ import annotations

from pathlib import Path

from inlay.data import Samples
from inlay.deadline import Deadline
from inlay.errors import InlayError
from inlay.model.load import ModelFile
from inlay.prepare.halves import find_wide, keep_wide, told
from inlay.prepare.model import prepare
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.targets.base import Capabilities


def kept_wide(file: ModelFile, target: Capabilities, samples: Samples, folder: Path, deadline: Deadline) -> str:
    """A sentence on the units that lose too much in the target's half precision; files go to the new ``folder``."""
    base = target.rules.base
    if base is None:
        return ""
    folder.mkdir()
    try:
        prepared = prepare(file, target, samples.feeds[0], folder)
        prepared = keep_wide(prepared, find_wide(prepared, samples.feeds, DEFAULT_MIN_SQNR_DB, deadline))
    except InlayError as error:
        return f"what loses too much in {base.value} is not known: {error}"
    return told(prepared) or f"on the samples nothing loses too much in {base.value}"
