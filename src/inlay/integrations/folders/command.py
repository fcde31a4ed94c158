"""``inlay folder``: the command, and what it found, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from inlay.cli.options import options_of
from inlay.cli.progress import progress_of
from inlay.cli.terminal import JSON, answer
from inlay.integrations.folders import quantize


@options_of(quantize.quantize_folder)
def folder(*, as_json: Annotated[bool, JSON] = False, **options: Any) -> None:
    """Tune the model of a text model's folder on texts, and write it where the loaders of its libraries look for it.

    Example:
        inlay folder my-encoder --texts texts.txt --for avx512_vnni -o my-encoder-int8
    """
    progress = progress_of(quiet=as_json)
    try:
        found = quantize.quantize_folder(**options, progress=progress)
    finally:
        progress.close()
    answer(as_json, found.as_json(), lambda: told(found))
    raise typer.Exit(found.exit_code)


def told(found: quantize.QuantizedFolder) -> Iterator[str]:
    """What was written, how fast it is, and how far it ranks and finds as float does."""
    best, judged = found.result.best, found.judged
    yield f"Wrote {found.path}: {best.speedup.value:.2f}x [{best.speedup.low:.2f}, {best.speedup.high:.2f}] over float."
    line = f"On {judged.texts} texts: rank correlation with float {judged.rank_correlation:.4f}"
    if judged.found is not None:
        line += f"; {100 * judged.found:.1f} % of float's {judged.neighbors} nearest texts found"
    yield f"{line}."
    for note in found.result.notes:
        yield f"Note: {note}."
