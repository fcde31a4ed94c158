"""One pattern cache for all runs on a target: what the first slices of earlier runs learned, later runs start from.

A run keeps the cache that it began with in its own folder, so that its later slices, and a resumed one, see the same.
Costs by signature need no pool: they are kept for all runs of a machine (:mod:`inlay.run.cost_database`).
"""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

from inlay.errors import InlayError
from inlay.files import replacing
from inlay.fleet import policy
from inlay.patterns.cache import PatternCache

_LEARNED = "pattern_cache.yaml"
_KNOWN = "known_patterns.yaml"


class PatternPool:
    """The pools of a fleet, one file for each target in its folder."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def learn(self, target: str, folder: Path) -> None:
        """Add what the run in ``folder`` learned; adding it twice changes nothing."""
        path, learned = self._path(target), folder / _LEARNED
        with contextlib.suppress(InlayError, OSError):  # it only saves time
            if not path.is_file():
                shutil.copyfile(learned, path)
            elif path.stat().st_size <= policy.MOST_POOLED_BYTES:
                pool = PatternCache.load(path)
                pool.merge(PatternCache.load(learned))
                pool.save(path)

    def snapshot(self, target: str, folder: Path, first: bool) -> Path | None:
        """The cache that the run in ``folder`` begins with, or began with; None where there was none."""
        kept, pool = folder / _KNOWN, self._path(target)
        if first and not kept.is_file() and not (folder / "run.sqlite").is_file() and pool.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(kept) as fresh:
                shutil.copyfile(pool, fresh)
        return kept if kept.is_file() else None

    def _path(self, target: str) -> Path:
        return self._out / f"patterns-{re.sub(r'[^A-Za-z0-9._=-]+', '-', target)}.yaml"
