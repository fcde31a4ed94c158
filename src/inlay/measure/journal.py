"""Everything that was found out, on disk as soon as it is known: a run that is killed loses at most one measurement.

One SQLite file in write-ahead mode. A run has an identity (model, samples, target, configuration, version); the same
command finds its own trials again, any other command is refused.
"""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np

from inlay.errors import JournalError
from inlay.trial import Accuracy, Failed, Infeasible, Interval, Latency, Measured, Outcome, OutputError
from inlay.types import Placement

_SCHEMA = """
CREATE TABLE IF NOT EXISTS identity (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trials (
    number INTEGER PRIMARY KEY, candidate TEXT NOT NULL UNIQUE, origin TEXT NOT NULL, placement TEXT NOT NULL,
    outcome TEXT NOT NULL, accepted INTEGER NOT NULL, versus TEXT
);
CREATE TABLE IF NOT EXISTS blocks (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, models TEXT NOT NULL, ns TEXT NOT NULL, drift REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS placements (candidate TEXT PRIMARY KEY, ports TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS feeds (name TEXT PRIMARY KEY, npz BLOB NOT NULL);
"""


class Journal:
    """The journal of one run.

    Args:
        path: the SQLite file; made when it is not there.
        identity: what must be equal for the run to continue; None to read whatever run it is.
        restart: forget what is there.

    Raises:
        JournalError: it is another run's journal, not a journal, or cannot be written.
    """

    def __init__(self, path: Path, identity: Mapping[str, str] | None, restart: bool = False) -> None:
        self.path = path
        if restart:
            for file in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
                file.unlink(missing_ok=True)
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise JournalError(f"{path} cannot be used as a journal: {error}") from error
        if identity is not None:
            self._check(identity)

    def _check(self, identity: Mapping[str, str]) -> None:
        known = dict(self._db.execute("SELECT key, value FROM identity"))
        if not known:
            self._write("INSERT INTO identity VALUES (?, ?)", *sorted(identity.items()))
            return
        different = [k for k in sorted({*identity, *known}) if identity.get(k) != known.get(k)]
        if different and self._is_empty():  # a run that failed before it measured anything is nobody's loss
            self._db.execute("DELETE FROM facts")
            self._db.execute("DELETE FROM identity")
            self._write("INSERT INTO identity VALUES (?, ?)", *sorted(identity.items()))
        elif different:
            raise JournalError(
                f"{self.path} belongs to another run (it differs in {', '.join(different)}): "
                "give another output folder, or --restart to begin anew"
            )

    def _is_empty(self) -> bool:
        tables = ("trials", "blocks")
        return not any(self._db.execute(f"SELECT 1 FROM {t} LIMIT 1").fetchone() for t in tables)

    @property
    def resumed(self) -> bool:
        """Whether it already holds trials."""
        return bool(self._db.execute("SELECT 1 FROM trials LIMIT 1").fetchone())

    def trial(self, candidate: str) -> tuple[Outcome, bool, Interval | None] | None:
        """Outcome, acceptance and comparison with the incumbent of the trial of ``candidate``, if there is one."""
        row = self._db.execute(
            "SELECT outcome, accepted, versus FROM trials WHERE candidate = ?", (candidate,)
        ).fetchone()
        if row is None:
            return None
        versus = None if row[2] is None else Interval(*json.loads(row[2]))
        return _outcome(json.loads(row[0])), bool(row[1]), versus

    def record(
        self,
        candidate: str,
        origin: str,
        placement: str,
        outcome: Outcome,
        accepted: bool,
        versus: Interval | None,
    ) -> None:
        """Keep a finished trial."""
        text = json.dumps({"kind": type(outcome).__name__, **asdict(outcome)})
        seen = None if versus is None else json.dumps([versus.value, versus.low, versus.high])
        self._write(
            "INSERT OR IGNORE INTO trials (candidate, origin, placement, outcome, accepted, versus)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (candidate, origin, placement, text, int(accepted), seen),
        )

    def blocks(self, kind: str, models: list[str]) -> np.ndarray:
        """Nanoseconds of every recorded block of exactly these models, shape (blocks, models)."""
        rows = self._db.execute(
            "SELECT ns FROM blocks WHERE kind = ? AND models = ? ORDER BY number", (kind, json.dumps(models))
        ).fetchall()
        return np.array([json.loads(r[0]) for r in rows], float).reshape(-1, len(models))

    def record_blocks(self, kind: str, models: list[str], ns: np.ndarray, drift: np.ndarray) -> None:
        """Keep measured blocks, in one transaction."""
        key = json.dumps(models)
        rows = [(kind, key, json.dumps(list(map(float, n))), float(d)) for n, d in zip(ns, drift, strict=True)]
        self._write("INSERT INTO blocks (kind, models, ns, drift) VALUES (?, ?, ?, ?)", *rows)

    def fact(self, key: str) -> Any:
        """A fact recorded earlier, or None."""
        row = self._db.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def record_fact(self, key: str, value: Any) -> None:
        """Keep a fact (JSON), replacing an earlier one."""
        self._write("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, json.dumps(value)))

    def record_placement(self, candidate: str, placement: Placement) -> None:
        """Keep the ports of a candidate, so that it can be written again."""
        self._write("INSERT OR IGNORE INTO placements VALUES (?, ?)", (candidate, json.dumps(placement.as_json())))

    def placement(self, candidate: str) -> Placement | None:
        """The ports of a candidate; None for a file that was given."""
        row = self._db.execute("SELECT ports FROM placements WHERE candidate = ?", (candidate,)).fetchone()
        return None if row is None else Placement.from_json(json.loads(row[0]))

    def record_feed(self, name: str, feed: Mapping[str, np.ndarray]) -> None:
        """Keep one sample: the model is normalized with its shapes when a candidate is written again."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **cast(Any, feed))  # numpy's stubs take names for options in some versions
        self._write("INSERT OR IGNORE INTO feeds VALUES (?, ?)", (name, buffer.getvalue()))

    def feed(self, name: str) -> dict[str, np.ndarray] | None:
        """A sample kept earlier."""
        row = self._db.execute("SELECT npz FROM feeds WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        with np.load(io.BytesIO(row[0]), allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}

    @property
    def identity(self) -> dict[str, str]:
        """What the run was."""
        return dict(self._db.execute("SELECT key, value FROM identity"))

    def trials(self) -> list[dict[str, Any]]:
        """Every trial in order, as plain data, for reports."""
        names = ("number", "candidate", "origin", "placement", "outcome", "accepted")
        rows = self._db.execute(f"SELECT {', '.join(names)} FROM trials ORDER BY number")
        return [{**dict(zip(names, r, strict=True)), "outcome": json.loads(r[4])} for r in rows]

    def close(self) -> None:
        """Fold the write-ahead log into the file and close it."""
        self._db.close()

    def _write(self, statement: str, *rows: tuple[Any, ...]) -> None:
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(statement, rows)
        except sqlite3.Error as error:
            raise JournalError(f"{self.path} cannot be written: {error}") from error


def _outcome(data: dict[str, Any]) -> Outcome:
    kind = data.pop("kind")
    if kind == "Failed":
        return Failed(**data)
    accuracy = data["accuracy"]
    accuracy["outputs"] = tuple(OutputError(**o) for o in accuracy["outputs"])
    if kind == "Infeasible":
        return Infeasible(Accuracy(**accuracy), data.get("equal_to", ""))
    latency = data["latency"]
    latency["speedup"] = Interval(**latency["speedup"])
    return Measured(Latency(**latency), Accuracy(**accuracy), data.get("equal_to", ""))
