"""The pattern cache: the best schemes by pattern, for the next run on this model or on a similar one.

A YAML file that people can read and edit::

    inlay_pattern_cache: 1
    minimum_distance: 4
    max_entries_per_pattern: 32
    patterns:
      0f3a…:
        summary: Conv→Relu
        structure: 77c1…
        depth: 0.25
        schemes:
        - speedup: 1.31
          points: [[node_input, 0, 0], [output, null, 1, 0]]

For each pattern the best schemes are kept, up to a limit, and no two of them closer than the minimum edit distance: of
two such schemes the faster one stays. Speedups only rank: a cached scheme is measured like any other.

A pattern is found again exactly, by its signature, or by its structure (:mod:`inlay.patterns.known`), which leaves
out sizes. ``general`` holds the points of a scheme in the order of the structure, where that is another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from inlay.errors import UsageError
from inlay.files import refuse_overwriting, write_text
from inlay.patterns.schemes import InsertionScheme, sort_key
from inlay.trial import counted
from inlay.yaml_file import read_yaml

FORMAT = "inlay_pattern_cache"
VERSION = 1

_SAME = "points"  # in place of points that are the same in the structure's order


@dataclass(frozen=True)
class CacheEntry:
    """A scheme with the speedup over float of the best placement that it was part of."""

    scheme: InsertionScheme  # of its pattern
    speedup: float  # baseline over that placement
    # the scheme of its pattern's structure; None where the structure is not known
    general: InsertionScheme | None = None


@dataclass(frozen=True)
class Kinship:
    """What a pattern has in common with patterns of other sizes."""

    structure: str = ""  # signature of its structure; empty where it is not known
    depth: float = 0.0  # where in the model its instances begin, on average: 0 at the inputs, 1 at the outputs


class PatternCache:
    """The best schemes by pattern.

    Args:
        minimum_distance: smallest edit distance between two schemes of one pattern.
        max_entries_per_pattern: most schemes of one pattern; 0 for all.
    """

    def __init__(self, minimum_distance: int = 4, max_entries_per_pattern: int = 32) -> None:
        if minimum_distance < 0 or max_entries_per_pattern < 0:
            raise UsageError("the minimum distance and the most entries of a pattern cache are 0 or more")
        self.minimum_distance = minimum_distance
        self.max_entries_per_pattern = max_entries_per_pattern
        self._entries: dict[str, tuple[CacheEntry, ...]] = {}
        self._summaries: dict[str, str] = {}
        self._kinship: dict[str, Kinship] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PatternCache) and self.to_data() == other.to_data()

    __hash__ = None  # type: ignore[assignment]

    def entries(self, signature: str) -> tuple[CacheEntry, ...]:
        """Schemes of a pattern, best first; empty if none is known."""
        return self._entries.get(signature, ())

    def summary(self, signature: str) -> str:
        """The pattern's operators, for people."""
        return self._summaries.get(signature, "")

    def kinship(self, signature: str) -> Kinship:
        """The structure of a pattern, and where in its model it was."""
        return self._kinship.get(signature, Kinship())

    def relatives(self, structure: str, depth: float) -> list[tuple[CacheEntry, ...]]:
        """Schemes of the patterns with a structure, each pattern's best first; patterns at about ``depth`` first."""
        found = [s for s in self if structure and self.kinship(s).structure == structure]
        found.sort(key=lambda s: abs(self.kinship(s).depth - depth))
        return [self.entries(s) for s in found]

    def add(self, signature: str, summary: str, entries: Iterable[CacheEntry], kinship: Kinship | None = None) -> None:
        """Add schemes of a pattern; of two schemes that are too close to each other the faster one is kept."""
        kept: list[CacheEntry] = []
        # a stable sort: among equals, earlier entries stay
        for entry in sorted([*self.entries(signature), *entries], key=lambda e: -e.speedup):
            if kept and len(kept) == self.max_entries_per_pattern:
                break
            least = max(1, self.minimum_distance)
            if all(entry.scheme.distance(k.scheme) >= least for k in kept):
                kept.append(entry)
        if kept:
            self._entries[signature] = tuple(kept)
            self._summaries[signature] = summary or self.summary(signature)
            if kinship is not None and kinship.structure:
                self._kinship.setdefault(signature, kinship)

    def merge(self, other: PatternCache) -> None:
        """Add all entries of ``other``; what only one of the two has is kept."""
        for signature in other:
            self.add(signature, other.summary(signature), other.entries(signature), other.kinship(signature))

    def to_data(self) -> dict[str, Any]:
        """Plain data, patterns in order."""
        return {
            FORMAT: VERSION,
            "minimum_distance": self.minimum_distance,
            "max_entries_per_pattern": self.max_entries_per_pattern,
            "patterns": {
                signature: {
                    "summary": self.summary(signature),
                    **({k: v for k, v in vars(self.kinship(signature)).items() if self.kinship(signature).structure}),
                    "schemes": [_entry_data(e) for e in self.entries(signature)],
                }
                for signature in self
            },
        }

    @classmethod
    def from_data(cls, data: object, source: str = "the pattern cache") -> PatternCache:
        """Read what :meth:`to_data` wrote.

        Raises:
            UsageError: it is something else, of another version, or damaged; the message names ``source``.
        """
        if not isinstance(data, dict) or FORMAT not in data:
            raise UsageError(f"{source} is not an Inlay pattern cache: it lacks the line '{FORMAT}: {VERSION}'")
        if data[FORMAT] != VERSION:
            raise UsageError(f"{source} has format version {data[FORMAT]!r}; this Inlay reads version {VERSION}")
        try:
            made = cls(int(data.get("minimum_distance", 4)), int(data.get("max_entries_per_pattern", 32)))
            for signature, held in (data.get("patterns") or {}).items():
                entries = [_entry(item) for item in held["schemes"]]
                kinship = Kinship(str(held.get("structure", "")), float(held.get("depth", 0.0)))
                made.add(str(signature), str(held.get("summary", "")), entries, kinship)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            what = f"there is no entry {error}" if isinstance(error, KeyError) else error
            raise UsageError(f"{source} is damaged: {what}") from error
        return made

    def save(self, path: str | Path) -> None:
        """Write the cache atomically. Raises UsageError if it cannot be written."""
        text = yaml.safe_dump(self.to_data(), sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)
        write_text(Path(path), text, UsageError)

    @classmethod
    def load(cls, path: str | Path) -> PatternCache:
        """Read a cache file. Raises NoSuchFile where there is none, and UsageError where it is not a cache."""
        return cls.from_data(read_yaml(Path(path)), str(path))


def show(cache: PatternCache) -> list[str]:
    """The cache as lines, for ``inlay cache show``."""
    count = sum(len(cache.entries(s)) for s in cache)
    lines = [f"{counted(len(cache), 'pattern')}, {counted(count, 'scheme')}"]
    for signature in cache:
        lines.append(f"{signature}  {cache.summary(signature)}")
        for entry in cache.entries(signature):
            points = ", ".join(str(p) for p in sorted(entry.scheme.points, key=sort_key)) or "float"
            lines.append(f"    {entry.speedup:.3f}x  {points}")
    return lines


def merge_files(paths: Sequence[str | Path], out: str | Path) -> PatternCache:
    """Merge cache files into one, for ``inlay cache merge``; the limits of the first file apply.

    Raises:
        UsageError: no file given, one of them is not a cache, or ``out`` is one of them or cannot be written.
    """
    if not paths:
        raise UsageError("cache merge: name at least one pattern cache")
    refuse_overwriting([Path(out)], paths)
    merged, *others = (PatternCache.load(p) for p in paths)
    for other in others:
        merged.merge(other)
    merged.save(out)
    return merged


def _entry(item: Any) -> CacheEntry:
    speedup = float(item["speedup"])
    if not math.isfinite(speedup) or speedup < 0:
        raise ValueError(f"{item['speedup']!r} is not a speedup")
    scheme, general = InsertionScheme.from_data(item["points"]), item.get("general")
    if general is None:
        return CacheEntry(scheme, speedup)
    return CacheEntry(scheme, speedup, scheme if general == _SAME else InsertionScheme.from_data(general))


def _entry_data(entry: CacheEntry) -> dict[str, Any]:
    data: dict[str, Any] = {"speedup": round(entry.speedup, 4), "points": entry.scheme.to_data()}
    if entry.general is not None:
        data["general"] = _SAME if entry.general == entry.scheme else entry.general.to_data()
    return data
