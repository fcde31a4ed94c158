"""The cost database: nanoseconds of units and boundaries by signature, kept for later runs on the same target.

One JSON file per target fingerprint in the user's cache folder (``INLAY_CACHE_DIR`` replaces it): a second model
of the same family starts with the costs of the first. It is a cache: a file that cannot be read or written is no error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from inlay.errors import InlayError
from inlay.files import replacing
from inlay.targets.base import Fingerprint

VERSION = 1
_MOST_WEIGHT = 8  # earlier readings count at most so many times against a new one


def cache_folder() -> Path:
    """Where the platform wants caches of the user: ``INLAY_CACHE_DIR`` goes before."""
    chosen = os.environ.get("INLAY_CACHE_DIR")
    if chosen:
        return Path(chosen)
    home = Path.home()
    usual = {"win32": home / "AppData" / "Local", "darwin": home / "Library" / "Caches"}.get(
        sys.platform, home / ".cache"
    )
    return Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or usual) / "inlay"


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
        known = self._load()
        for key, ns in costs.items():
            mean, weight = known.get(key, (0.0, 0))
            known[key] = ((mean * weight + ns) / (weight + 1), min(weight + 1, _MOST_WEIGHT))
        with contextlib.suppress(OSError, InlayError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as fresh:
                content = {"version": VERSION, "costs": dict(sorted(known.items()))}
                fresh.write_text(json.dumps(content) + "\n", encoding="utf8")

    def _load(self) -> dict[str, tuple[float, int]]:
        try:
            content = json.loads(self.path.read_text(encoding="utf8"))
            if content["version"] != VERSION:
                return {}
            return {str(k): (float(mean), int(weight)) for k, (mean, weight) in content["costs"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
