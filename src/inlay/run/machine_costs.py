"""The cost tables of processors: one file by target fingerprint in the user's cache folder, or one that ships.

``inlay calibrate-machine`` writes them. A table that cannot be read, or is of another processor, is left alone with a
warning: it makes answers faster, and nothing depends on it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from inlay.errors import DataError
from inlay.files import cache_folder, read_json, write_text
from inlay.installed import __version__
from inlay.search.cost_table import CostTable
from inlay.targets.base import Calibrates, Fingerprint, ShipsCosts, Target

VERSION = 1
_LARGEST_BYTES = 20_000_000  # a table has some hundred rows


@dataclass(frozen=True)
class MachineCosts:
    """A cost table and where it comes from.

    Attributes:
        table: the fits; None where there are none for this processor.
        source: for people: measured here, or shipped, or why there are none.
        own: it was measured on this very target.
        warning: what is wrong with a file that was left alone; empty where nothing is.
    """

    table: CostTable | None
    source: str
    own: bool = False
    warning: str = ""


def path_of(fingerprint: Fingerprint, folder: Path | None = None) -> Path:
    """Where the table for a target is kept; ``folder`` is the user's cache folder by default."""
    return (folder or cache_folder()) / "machine" / f"{fingerprint.target}-{fingerprint.digest}.json"


def write_costs(fingerprint: Fingerprint, table: CostTable, folder: Path | None = None) -> Path:
    """Keep ``table`` for later calls. Raises JournalError where the folder cannot be written."""
    path = path_of(fingerprint, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "version": VERSION,
        "inlay": __version__,
        "target": fingerprint.target,
        "facts": dict(fingerprint.facts),
        "fits": table.as_json(),
    }
    write_text(path, json.dumps(content, separators=(",", ":")).replace('],["', '],\n["') + "\n")
    return path


def read_costs(target: Target, fingerprint: Fingerprint, folder: Path | None = None, own: bool = True) -> MachineCosts:
    """The table of this processor: measured here, or the one that ships for processors with the same instructions.

    What ships is of the machine where the command runs, so that it counts for no device of another. Without ``own``
    what was measured here does not count.
    """
    path, warning = path_of(fingerprint, folder), ""
    if own and path.exists():
        try:
            table, facts = _load(path)
            if facts != dict(fingerprint.facts):
                raise ValueError("it was measured on another processor or runtime")
            return MachineCosts(table, f"measured on this processor ({path})", own=True)
        except (OSError, DataError, ValueError, RecursionError) as error:
            warning = f"{path} is ignored: {error}; inlay calibrate-machine writes a new one"
    shipped = target.shipped_costs() if isinstance(target, ShipsCosts) else None
    if shipped is not None and target.fingerprint() == fingerprint:
        table, facts = _load(shipped)
        return MachineCosts(
            table,
            f"shipped, measured on {facts.get('cpu', 'another processor')}; inlay calibrate-machine measures this one",
            warning=warning,
        )
    why = "nothing is known about this processor's kernels: inlay calibrate-machine measures them"
    if not isinstance(target, Calibrates):
        why = f"there is no cost table for {fingerprint.target}"
    return MachineCosts(None, why, warning=warning)


def _load(path: Path) -> tuple[CostTable, dict[str, str]]:
    """The table in a file, and the facts that it was measured under. Raises ValueError, OSError, DataError."""
    if path.stat().st_size > _LARGEST_BYTES:
        raise ValueError("it is too large for a cost table")
    try:
        content = read_json(path, _LARGEST_BYTES)
    except ValueError:
        raise ValueError("it is not JSON, or is cut short") from None
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise ValueError(f"it is not a cost table of version {VERSION}")
    facts = content.get("facts")
    if not isinstance(facts, dict) or not all(isinstance(value, str) for value in facts.values()):
        raise ValueError("it does not say what it was measured on")
    return CostTable.from_json(content.get("fits")), facts
