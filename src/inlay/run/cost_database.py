"""The cost database: nanoseconds of units and boundaries by signature, kept for later runs on the same target.

One JSON file per target fingerprint in the user's cache folder (``INLAY_CACHE_DIR`` replaces it): a second model
of the same family starts with the costs of the first. It is a cache: a file that cannot be read or written is no error.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from inlay.errors import InlayError
from inlay.files import cache_folder, read_json, replacing
from inlay.targets.base import Fingerprint

VERSION = 2  # 1 held costs of products under the operators around them, on one of the targets
_LARGEST_NS = 1e15  # eleven days: no kernel takes that long, and sums of such numbers stay finite
_LOCK_S = 5.0  # to add costs takes milliseconds; who holds the lock for longer has died or is stuck
_MOST_WEIGHT = 8  # earlier readings count at most so many times against a new one


class CostDatabase:
    """Mean nanoseconds by signature, for one target.

    Args:
        fingerprint: of the target.
        folder: where the files are; the user's cache folder by default.
    """

    def __init__(self, fingerprint: Fingerprint, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "costs"
        self.path = self._folder / f"{fingerprint.target}-{fingerprint.digest}.json"

    def read(self, signatures: Iterable[str] | None = None) -> dict[str, float]:
        """Known costs, of ``signatures`` or of all."""
        costs = self._load()
        wanted = costs.keys() if signatures is None else set(signatures)
        return {key: costs[key][0] for key in sorted(wanted) if key in costs}

    def add(self, costs: Mapping[str, float]) -> None:
        """Average new readings in."""
        with contextlib.suppress(OSError, InlayError, Timeout):
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_suffix(".lock"), timeout=_LOCK_S), replacing(self.path) as fresh:
                known = self._load()
                for key, ns in costs.items():
                    mean, weight = known.get(key, (0.0, 0))
                    known[key] = ((mean * weight + ns) / (weight + 1), min(weight + 1, _MOST_WEIGHT))
                content = {"version": VERSION, "costs": dict(sorted(known.items()))}
                fresh.write_text(json.dumps(content) + "\n", encoding="utf8")

    def _load(self) -> dict[str, tuple[float, int]]:
        try:
            content = read_json(self.path)
            rows = content["costs"].items() if content["version"] == VERSION else ()
        except (InlayError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}
        return {key: (float(row[0]), row[1]) for key, row in rows if _is_entry(row)}


def _is_entry(row: object) -> bool:
    """Whether ``row`` is a mean that a cost can have, and a weight."""
    if not isinstance(row, list) or len(row) != 2 or any(isinstance(n, bool) for n in row):
        return False
    mean, weight = row
    return isinstance(mean, (int, float)) and 0.0 <= mean <= _LARGEST_NS and weight in range(1, _MOST_WEIGHT + 1)
