"""What is known of costs before a run: the processor's cost table, and the costs that earlier runs found out.

Both are files by target fingerprint in the user's cache folder (``INLAY_CACHE_DIR`` replaces it), and nothing depends
on them. ``inlay calibrate-machine`` writes the table, or one ships; one that cannot be read, or is of another processor
or runtime, is left alone with a warning. The cost database holds nanoseconds of units and boundaries by signature, so
that a second model of the same family starts with the costs of the first; a file of it that is damaged is no error.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from inlay.errors import DataError, InlayError, UsageError
from inlay.files import cache_folder, read_json, replacing, write_text
from inlay.installed import __version__
from inlay.search.cost_table import CostTable
from inlay.search.peaks import Peaks
from inlay.targets.base import Calibrates, Fingerprint, ShipsCosts, Target
from inlay.targets.registry import NamesProcessors

VERSION = 2  # 1 held costs of products under the operators around them, on one of the targets
_LARGEST_NS = 1e15  # eleven days: no kernel takes that long, and sums of such numbers stay finite
_LOCK_S = 5.0  # to add costs takes milliseconds; who holds the lock for longer has died or is stuck
_MOST_WEIGHT = 8  # earlier readings count at most so many times against a new one
_TABLE_VERSION = 1
_LARGEST_BYTES = 20_000_000  # a table has some hundred rows


@dataclass(frozen=True)
class MachineCosts:
    """A cost table and where it comes from."""

    table: CostTable | None  # the fits; None where there are none for this processor
    source: str  # for people: measured here, or shipped, or why there are none
    own: bool = False  # it was measured on this very target, or the user says that it counts for it
    warning: str = ""  # what is wrong with a file that was left alone; empty where nothing is
    # of a file that is to run on several processors, the table of each by its name: none where one has none
    several: Mapping[str, CostTable] = field(default_factory=dict)


def path_of(fingerprint: Fingerprint, folder: Path | None = None) -> Path:
    """Where the table for a target is kept; ``folder`` is the user's cache folder by default."""
    return (folder or cache_folder()) / "machine" / f"{fingerprint.target}-{fingerprint.digest}.json"


def write_costs(
    fingerprint: Fingerprint, table: CostTable, folder: Path | None = None, peaks: Peaks | None = None
) -> Path:
    """Keep ``table`` and ``peaks`` for later calls. Raises JournalError where the folder cannot be written."""
    path = path_of(fingerprint, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, fingerprint, table, peaks)
    return path


def write_table(path: Path, fingerprint: Fingerprint, table: CostTable, peaks: Peaks | None = None) -> None:
    """Write ``table`` and ``peaks`` to ``path``, for this machine or to be carried to another (:func:`read_costs`).

    Raises:
        JournalError: it cannot be written.
    """
    content = {
        "version": _TABLE_VERSION,
        "inlay": __version__,
        "target": fingerprint.target,
        "facts": dict(fingerprint.facts),
        **({} if peaks is None else {"peaks": peaks.as_json()}),
        **({"fits": table.as_json()} if table.fits or peaks is None else {}),
    }
    write_text(path, json.dumps(content, separators=(",", ":")).replace('],["', '],\n["') + "\n")


def read_peaks(fingerprint: Fingerprint, folder: Path | None = None) -> Peaks | None:
    """The peaks that were measured on this very target; None where there are none that can be read."""
    with contextlib.suppress(OSError, DataError, ValueError, RecursionError):
        content = _content(path_of(fingerprint, folder))
        return Peaks.from_json(content.get("peaks")) if content["facts"] == dict(fingerprint.facts) else None
    return None


def keep_peaks(fingerprint: Fingerprint, peaks: Peaks, folder: Path | None = None) -> Path:
    """Keep ``peaks`` beside the costs that are known. Raises JournalError where the folder cannot be written."""
    table = CostTable()
    with contextlib.suppress(OSError, DataError, ValueError, RecursionError):
        known, facts = _load(path_of(fingerprint, folder))
        table = known if known is not None and facts == dict(fingerprint.facts) else CostTable()
    return write_costs(fingerprint, table, folder, peaks)


def read_costs(
    target: Target, fingerprint: Fingerprint, folder: Path | None = None, own: bool = True, given: Path | None = None
) -> MachineCosts:
    """The table of this processor: measured here, or the one that ships for processors with the same instructions.

    What ships is of the machine where the command runs, or of a processor that is named, so that it counts for no
    device of another. Without ``own`` what was measured here does not count. A file that is ``given`` goes before all;
    without it the table of a processor that is named is the one that ships.

    Raises:
        UsageError: ``given`` cannot be read, or is of another target or other instructions.
    """
    if given is not None:
        return MachineCosts(carried(given, fingerprint), f"{given}", own=True)
    each = target.each_processor() if isinstance(target, NamesProcessors) else {}
    if len(each) > 1:
        known = {name: read_costs(one, one.fingerprint()) for name, one in each.items()}
        tables = {name: found.table for name, found in known.items() if found.table is not None}
        source = "; ".join(f"for {name} {found.source}" for name, found in known.items())
        whole = len(tables) == len(each)
        return MachineCosts(next(iter(tables.values())) if whole else None, source, several=tables if whole else {})
    path, warning = path_of(fingerprint, folder), ""
    if own and path.exists():
        try:
            table, facts = _load(path)
            if facts != dict(fingerprint.facts):
                raise ValueError("it was measured on another processor or runtime")
            if table is not None:
                return MachineCosts(table, f"measured on this processor ({path})", own=True)
        except (OSError, DataError, ValueError, RecursionError) as error:
            warning = f"{path} is ignored: {error}; inlay calibrate-machine writes a new one"
    there = " there" if each else ""
    shipped = target.shipped_costs() if isinstance(target, ShipsCosts) else None
    if shipped is not None and target.fingerprint() == fingerprint:
        table, facts = _load(shipped)
        better = "" if each else "; inlay calibrate-machine measures this one"
        of = f"measured on {facts.get('cpu', 'another processor')} ({facts.get('isa', '')})"
        if "priced by" in facts:
            of = f"priced by {facts['priced by']}"
        return MachineCosts(table, f"shipped, {of}{better}", warning=warning)
    why = f"nothing is known about this processor's kernels: inlay calibrate-machine{there} measures them"
    if not isinstance(target, Calibrates):
        why = f"there is no cost table for {fingerprint.target}"
    return MachineCosts(None, why, warning=warning)


def carried(path: Path, fingerprint: Fingerprint) -> CostTable:
    """The table of a file that ``inlay calibrate-machine`` wrote, on this machine or on another with its instructions.

    Raises:
        UsageError: it cannot be read, or is of another target or other instructions.
    """
    try:
        content = _content(path)
        table = CostTable.from_json(content.get("fits"))
    except (OSError, DataError, ValueError, RecursionError) as error:
        said = "there is no such file" if isinstance(error, FileNotFoundError) else f"{error}"
        raise UsageError(f"--costs {path}: {said}; inlay calibrate-machine --costs FILE writes one") from error
    there, here = {"target": content.get("target"), **content["facts"]}, fingerprint.named_facts
    differs = [f"{key} {there.get(key)}, not {here.get(key)}" for key in _DECIDING if there.get(key) != here.get(key)]
    if differs:
        raise UsageError(f"--costs {path}: it was measured on {'; '.join(differs)}: give the table of that processor")
    return table


_DECIDING = ("target", "machine", "isa")
"""Facts of which costs are no guess where they differ: other versions and sizes of a processor are near enough."""


def _load(path: Path) -> tuple[CostTable | None, dict[str, str]]:
    """The table in a file, None where it holds peaks only, and the facts that it was measured under.

    Raises ValueError, OSError, DataError.
    """
    content = _content(path)
    if "like" in content:  # priced by what instructions do, in terms of a table that was measured
        table, _ = _load(path.with_name(f"{content['like']}.json"))
        return table and table.with_products(float(content["low products"])), content["facts"]
    only_peaks = "peaks" in content and "fits" not in content
    return None if only_peaks else CostTable.from_json(content.get("fits")), content["facts"]


def _content(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _LARGEST_BYTES:
        raise ValueError("it is too large for a cost table")
    try:
        content = read_json(path, _LARGEST_BYTES)
    except ValueError:
        raise ValueError("it is not JSON, or is cut short") from None
    if not isinstance(content, dict) or content.get("version") != _TABLE_VERSION:
        raise ValueError(f"it is not a cost table of version {_TABLE_VERSION}")
    facts = content.get("facts")
    if not isinstance(facts, dict) or not all(isinstance(value, str) for value in facts.values()):
        raise ValueError("it does not say what it was measured on")
    return content


class CostDatabase:
    """Mean nanoseconds by signature, for one target.

    Args:
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
