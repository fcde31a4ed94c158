"""The journal of a run: every result is on disk as soon as it is known, so a killed run loses at most one measurement.

One SQLite file in write-ahead mode. A run has an identity (model, samples, target, configuration, version); the same
command resumes from its own trials, any other command is refused. Besides trials and measurement blocks the journal
keeps *facts*: decisions and answers that a resumed run must not make or ask for again, each declared once as a
:class:`Fact`.
"""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

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


T = TypeVar("T")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """The declaration of one fact: its key on disk, and its form as JSON.

    Attributes:
        key: on disk.
        read: the value from JSON.
        write: JSON from the value; by default the value is plain data itself.
    """

    key: str
    read: Callable[[Any], T]
    write: Callable[[T], Any] = lambda value: value

    def of(self, name: str) -> Fact[T]:
        """The same fact about one of many things, such as the profile of one candidate."""
        return replace(self, key=f"{self.key} {name}")


@dataclass(frozen=True)
class Record:
    """One finished trial as the journal keeps it.

    Attributes:
        candidate: key of the model.
        origin: which anchor or strategy proposed it.
        placement_digest: digest of its placement.
        outcome: what was found out.
        accepted: whether it replaced the incumbent.
        versus_incumbent: incumbent's latency over its own, paired, or None where it was not raced.
    """

    candidate: str
    origin: str
    placement_digest: str
    outcome: Outcome
    accepted: bool = False
    versus_incumbent: Interval | None = None


class Journal:
    """The journal of one run.

    Args:
        path: the SQLite file; created if it does not exist.
        identity: what must be equal for the run to resume; None to read the journal of any run.
        restart: delete the journal of an earlier run first.

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
        if different and self._is_empty():  # a run that failed before its first measurement holds nothing to keep
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

    def trial(self, candidate: str) -> Record | None:
        """The trial of ``candidate``, if there is one."""
        row = self._db.execute(f"SELECT {_RECORD} FROM trials WHERE candidate = ?", (candidate,)).fetchone()
        return None if row is None else _record(*row)

    def trials(self) -> list[Record]:
        """Every trial, in order."""
        return [_record(*row) for row in self._db.execute(f"SELECT {_RECORD} FROM trials ORDER BY number")]

    def record(self, trial: Record) -> None:
        """Append a finished trial; the first record of a candidate stands."""
        outcome = json.dumps({"kind": type(trial.outcome).__name__, **asdict(trial.outcome)})
        versus = trial.versus_incumbent
        self._write(
            f"INSERT OR IGNORE INTO trials ({_RECORD}) VALUES (?, ?, ?, ?, ?, ?)",
            (
                trial.candidate,
                trial.origin,
                trial.placement_digest,
                outcome,
                int(trial.accepted),
                None if versus is None else json.dumps([versus.value, versus.low, versus.high]),
            ),
        )

    def blocks(self, kind: str, models: list[str]) -> np.ndarray:
        """Nanoseconds of every recorded block of exactly these models, shape (blocks, models)."""
        rows = self._db.execute(
            "SELECT ns FROM blocks WHERE kind = ? AND models = ? ORDER BY number", (kind, json.dumps(models))
        ).fetchall()
        return np.array([json.loads(r[0]) for r in rows], float).reshape(-1, len(models))

    def record_blocks(self, kind: str, models: list[str], ns: np.ndarray, drift: np.ndarray) -> None:
        """Append measured blocks in one transaction."""
        key = json.dumps(models)
        rows = [(kind, key, json.dumps(list(map(float, n))), float(d)) for n, d in zip(ns, drift, strict=True)]
        self._write("INSERT INTO blocks (kind, models, ns, drift) VALUES (?, ?, ?, ?)", *rows)

    def fact(self, fact: Fact[T]) -> T | None:
        """The value recorded earlier, or None."""
        row = self._db.execute("SELECT value FROM facts WHERE key = ?", (fact.key,)).fetchone()
        return None if row is None else fact.read(json.loads(row[0]))

    def record_fact(self, fact: Fact[T], value: T) -> T:
        """Record a value, replacing an earlier one, and return it."""
        self._write("INSERT OR REPLACE INTO facts VALUES (?, ?)", (fact.key, json.dumps(fact.write(value))))
        return value

    def once(self, fact: Fact[T], decide: Callable[[], T]) -> T:
        """The value recorded earlier; otherwise that of ``decide``, which is recorded."""
        known = self.fact(fact)
        return self.record_fact(fact, decide()) if known is None else known

    def record_placement(self, candidate: str, placement: Placement) -> None:
        """Record the placement of a candidate, so that its model can be written again."""
        self._write("INSERT OR IGNORE INTO placements VALUES (?, ?)", (candidate, json.dumps(placement.as_json())))

    def placement(self, candidate: str) -> Placement | None:
        """The placement of a candidate; None for a file that the user gave."""
        row = self._db.execute("SELECT ports FROM placements WHERE candidate = ?", (candidate,)).fetchone()
        return None if row is None else Placement.from_json(json.loads(row[0]))

    def record_feed(self, name: str, feed: Mapping[str, np.ndarray]) -> None:
        """Record one sample: writing a candidate again normalizes the model with its shapes."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **cast(Any, feed))  # numpy's stubs take names for options in some versions
        self._write("INSERT OR IGNORE INTO feeds VALUES (?, ?)", (name, buffer.getvalue()))

    def feed(self, name: str) -> dict[str, np.ndarray] | None:
        """A sample recorded earlier, or None."""
        row = self._db.execute("SELECT npz FROM feeds WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        with np.load(io.BytesIO(row[0]), allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}

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


_RECORD = "candidate, origin, placement, outcome, accepted, versus"


def _record(candidate: str, origin: str, placement: str, outcome: str, accepted: int, versus: str | None) -> Record:
    interval = None if versus is None else Interval(*json.loads(versus))
    return Record(candidate, origin, placement, _outcome(json.loads(outcome)), bool(accepted), interval)


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
