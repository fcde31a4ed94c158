"""What of the user's data became no sample, and why: nothing is left out without a word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from inlay.data.samples import InputSpec

_OF_SAMPLES = re.compile(
    r"\.(np[yz]|pb|jsonl|csv|parquet|h5|hdf5|mat|pt|"  # numbers
    r"wav|flac|mp3|ogg|opus|m4a|aac|aiff?|wma|"  # sounds
    r"bmp|gif|jpe?g|jpe|jfif|jp2|png|p[gp]m|tiff?|webp|hei[cf]|avif|dng)",  # images
    re.IGNORECASE,
)
"""Suffixes of what people keep samples in; other files of a folder, such as a list of classes, are none."""


class LeftOut:
    """Hears from readers what they leave out, and says it for people."""

    def __init__(self) -> None:
        self._rows = self._of = self._batch = 0
        self._pictures = 0
        self._files = ""

    def rows(self, rests: Mapping[str, tuple[InputSpec, int, int]]) -> None:
        """Of stacked arrays so many rows were left over, of so many, by input: they fill no batch of the model."""
        batch, rest, of = max(
            (spec.dims[0], rest, of) for spec, rest, of in rests.values() if spec.dims and isinstance(spec.dims[0], int)
        )
        self._batch, self._rows, self._of = batch, self._rows + rest, self._of + of

    def further_pictures(self) -> None:
        """A file holds more than one picture, of which the first became a sample."""
        self._pictures += 1

    def files(self, folder: Path, used: Iterable[Path], what: str) -> None:
        """Samples are ``what`` of a folder, read from the files ``used``; others in it or below it may hold more."""
        read = set(used)
        others = Counter(
            p.suffix.lower()
            for p in folder.rglob("*")
            if _OF_SAMPLES.fullmatch(p.suffix) and p not in read and not p.stem.startswith("output_") and p.is_file()
        )
        if others:
            listed = ", ".join(f"{count} {suffix}" for suffix, count in sorted(others.items()))
            files = "1 file was" if others.total() == 1 else f"{others.total()} files were"
            self._files = f"{files} not used ({listed}): the samples are {what} in {folder}"

    @property
    def said(self) -> tuple[str, ...]:
        """One line for each reason; empty where everything became a sample."""
        found = [self._files] if self._files else []
        if self._rows:
            were, they = ("was", "it fills") if self._rows == 1 else ("were", "they fill")
            found.append(
                f"{self._rows} of {self._of} rows {were} not used: the model takes {self._batch} at once, and {they} "
                "no further batch"
            )
        if self._pictures:
            of = "1 file" if self._pictures == 1 else f"each of {self._pictures} files"
            found.append(f"of {of} with several pictures only the first one was used")
        return tuple(found)
