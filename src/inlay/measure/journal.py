"""The journal of a run: every result is on disk as soon as it is known, so a killed run loses at most one measurement.

One SQLite file in write-ahead mode. A run has an identity (model, samples, target, configuration, version); the same
command resumes from its own trials, any other command is refused. Besides trials and measurement blocks the journal
keeps *facts*: decisions and answers that a resumed run must not make or ask for again, each declared once as a
:class:`Fact`. With each record it keeps how long the session has taken, so that a resumed run knows what is left of its
budget. A file that is not a journal is never written to, and never deleted.
"""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, Generic, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from inlay.data import load_feed, save_feed
from inlay.errors import JournalError
from inlay.measure import database
from inlay.trial import Failed, Infeasible, Interval, Measured, Outcome
from inlay.types import Placement

_APPLICATION = 0x496E6C79  # "Inly", in the header of the file: tells a journal from any other database
_TABLES = """
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
CREATE TABLE IF NOT EXISTS sessions (number INTEGER PRIMARY KEY, seconds REAL NOT NULL);
"""
_OBJECTS = database.objects_of(_TABLES)
_NEEDED = ("identity", "trials", "blocks", "facts", "placements", "feeds")
"""Tables of every journal; those of older ones did not count sessions."""
_BEGIN = f"BEGIN IMMEDIATE; PRAGMA application_id = {_APPLICATION}; {_TABLES} COMMIT;"
_MOST_SESSIONS = 2**31 - 1
_MALFORMED = (
    sqlite3.Error, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError, OSError,
    zipfile.BadZipFile, zlib.error, NotImplementedError, RecursionError,
)  # fmt: skip
"""What reading a damaged row raises."""


T = TypeVar("T")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """The declaration of one fact: its key on disk, and its form as JSON."""

    key: str  # on disk
    read: Callable[[Any], T]  # the value from JSON
    write: Callable[[T], Any] = lambda value: value  # JSON from the value; by default the value is plain data itself

    def of(self, name: str) -> Fact[T]:
        """The same fact about one of many things, such as the profile of one candidate."""
        return replace(self, key=f"{self.key} {name}")


@dataclass(frozen=True)
class Record:
    """One finished trial as the journal keeps it."""

    candidate: str  # key of the model
    origin: str  # which anchor or strategy proposed it
    placement_digest: str  # digest of its placement
    outcome: Outcome  # what was found out
    accepted: bool = False  # whether it replaced the incumbent
    versus_incumbent: Interval | None = None  # incumbent's latency over its own, paired, or None where it was not raced


class Journal:
    """The journal of one run.

    Args:
        identity: what must be equal for the run to resume; None to read the journal of any run.
        seconds: how long this session has taken so far; recorded with everything else.

    Attributes:
        spent_s: seconds of all earlier sessions, each up to its last record.

    Raises:
        JournalError: it is another run's journal, not a journal, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, str] | None,
        restart: bool = False,
        seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.path, self._seconds = path, seconds
        _refuse_foreign(path)
        if restart:
            _delete(path)
        self._created = not path.exists()
        try:
            self._db = database.connect(path, _OBJECTS, _NEEDED)
        except (sqlite3.Error, UnicodeDecodeError, database.NotOurs) as error:
            raise JournalError(f"{path} cannot be used as a journal: {error}") from error
        try:
            with self._writing():
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.executescript(_BEGIN)
            with self._reading():
                ((last, spent),) = self._db.execute("SELECT MAX(number), SUM(seconds) FROM sessions")
                self._session, self.spent_s = int(last or 0) + 1, float(spent or 0.0)
                if self._session > _MOST_SESSIONS:
                    raise ValueError(f"it counts {last} sessions")
                if identity is not None:
                    self._check(identity)
        except BaseException:  # also where it is interrupted: nobody else could close it
            self._db.close()
            raise

    def _check(self, identity: Mapping[str, str]) -> None:
        known = dict(self._db.execute("SELECT key, value FROM identity"))
        different = [k for k in sorted({*identity, *known}) if identity.get(k) != known.get(k)]
        if known and different and not self.empty:
            self.refuse(", ".join(_WORDS.get(key, key) for key in different))
        if different:
            self._db.execute("DELETE FROM identity")
            self._write("INSERT INTO identity VALUES (?, ?)", *sorted(identity.items()))

    def refuse(self, different: str) -> NoReturn:
        """Raise JournalError: it is of a run that differs in something from the one that wants to go on."""
        raise JournalError(
            f"{self.path} belongs to another run (it differs in {different}): give another output folder, or "
            "--restart to begin anew"
        )

    @property
    def target(self) -> str:
        """Name and fingerprint's digest of the target that the run measured on; empty where nobody recorded them."""
        return self._identity("target")

    @property
    def judging(self) -> str:
        """Version of the rules that the accuracies are by; empty in journals of a time when there was one only."""
        return self._identity("judging")

    def _identity(self, key: str) -> str:
        with self._reading():
            found = self._db.execute("SELECT value FROM identity WHERE key = ?", (key,)).fetchone()
        return str(found[0]) if found else ""

    @property
    def empty(self) -> bool:
        """Whether it holds nothing that took time to find out."""
        with self._reading():
            tables = ("trials", "blocks", "facts")
            return not any(self._db.execute(f"SELECT 1 FROM {t} LIMIT 1").fetchone() for t in tables)

    @property
    def judged(self) -> bool:
        """Whether it holds a trial."""
        with self._reading():
            return self._db.execute("SELECT 1 FROM trials LIMIT 1").fetchone() is not None

    def trial(self, candidate: str) -> Record | None:
        """The trial of ``candidate``, if there is one."""
        with self._reading():
            row = self._db.execute(f"SELECT {_RECORD} FROM trials WHERE candidate = ?", (candidate,)).fetchone()
            return None if row is None else _record(*row)

    def trials(self) -> list[Record]:
        """Every trial, in order."""
        with self._reading():
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
        query = "SELECT ns FROM blocks WHERE kind = ? AND models = ? ORDER BY number"
        with self._reading():
            rows = self._db.execute(query, (kind, json.dumps(models))).fetchall()
            return np.array([_block(r[0], len(models)) for r in rows], float).reshape(-1, len(models))

    def record_blocks(self, kind: str, models: list[str], ns: np.ndarray, drift: np.ndarray) -> None:
        """Append measured blocks in one transaction."""
        key = json.dumps(models)
        rows = [(kind, key, json.dumps(list(map(float, n))), float(d)) for n, d in zip(ns, drift, strict=True)]
        self._write("INSERT INTO blocks (kind, models, ns, drift) VALUES (?, ?, ?, ?)", *rows)

    def readings(self) -> list[tuple[str, list[str], list[float], float]]:
        """Every recorded block in order: its kind, its models, their nanoseconds, and its drift."""
        query = "SELECT kind, models, ns, drift FROM blocks ORDER BY number"
        with self._reading():
            rows = self._db.execute(query).fetchall()
            found = [(str(k), list(json.loads(m)), n, float(d)) for k, m, n, d in rows]
            return [(kind, models, _block(ns, len(models)), drift) for kind, models, ns, drift in found]

    def fact(self, fact: Fact[T]) -> T | None:
        """The value recorded earlier, or None."""
        with self._reading():
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
        with self._reading():
            row = self._db.execute("SELECT ports FROM placements WHERE candidate = ?", (candidate,)).fetchone()
            return None if row is None else Placement.from_json(json.loads(row[0]))

    def record_feed(self, name: str, feed: Mapping[str, np.ndarray]) -> None:
        """Record one sample: writing a candidate again normalizes the model with its shapes."""
        buffer = io.BytesIO()
        save_feed(buffer, feed, compressed=True)
        self._write("INSERT OR IGNORE INTO feeds VALUES (?, ?)", (name, buffer.getvalue()))

    def feed(self, name: str) -> dict[str, np.ndarray] | None:
        """A sample recorded earlier, or None."""
        with self._reading():
            row = self._db.execute("SELECT npz FROM feeds WHERE name = ?", (name,)).fetchone()
            if row is None:
                return None
            return load_feed(io.BytesIO(row[0]))

    def record_seconds(self) -> None:
        """Record how long this session has taken, where nothing else is recorded for a while."""
        self._write(_SESSION, (self._session, self._seconds()))

    def close(self) -> None:
        """Fold the write-ahead log into the file and close it; a file that it made and that holds nothing goes.

        A mistyped option must not occupy the folder.
        """
        worthless = False
        with contextlib.suppress(JournalError):
            worthless = self._created and self.empty
        self._db.close()
        if worthless:
            _delete(self.path)

    def _write(self, statement: str, *rows: tuple[Any, ...]) -> None:
        with self._writing(), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(statement, rows)
            self._db.execute(_SESSION, (self._session, self._seconds()))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            database.limit(self._db)
            yield
        except sqlite3.Error as error:
            raise JournalError(f"{self.path} cannot be written: {database.reason(error)}") from error

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            database.limit(self._db)
            yield
        except _MALFORMED as error:
            raise JournalError(
                f"{self.path} is damaged ({database.reason(error)}): give another output folder, or --restart to begin "
                "anew"
            ) from error


def spent_in(path: Path) -> float:
    """Seconds of all sessions of the run whose journal is at ``path``; 0 where there is none. Raises JournalError."""
    if not path.is_file():
        return 0.0
    with contextlib.closing(Journal(path, None)) as journal:
        return journal.spent_s


def _refuse_foreign(path: Path) -> None:
    """Raise JournalError where there is a file at ``path`` that was not written by a journal; it is only read.

    A file without any table is what a run leaves that was killed as it made its journal.
    """
    if not path.exists():
        return
    try:
        database.look(path, _OBJECTS, _NEEDED)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise JournalError(f"{path} cannot be used as a journal ({error}): {_ELSEWHERE}") from error
    except database.NotOurs as error:
        what = "is damaged" if error.application == _APPLICATION else "is not a journal of Inlay"
        raise JournalError(f"{path} {what} ({error}): {_ELSEWHERE}") from error


_WORDS = {"judging": "the rules by which accuracy is judged"}  # for people, of keys that say too little
_ELSEWHERE = "move it away, or give another output folder"
_SESSION = "INSERT OR REPLACE INTO sessions VALUES (?, ?)"


def _delete(path: Path) -> None:
    for file in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        file.unlink(missing_ok=True)


_RECORD = "candidate, origin, placement, outcome, accepted, versus"


def _block(text: str, models: int) -> list[float]:
    """The nanoseconds of as many models. Raises ValueError or TypeError where it holds something else."""
    found = [float(made(float, ns)) for ns in json.loads(text)]
    if len(found) != models or not all(0 < ns < float("inf") for ns in found):
        raise ValueError(f"{text!r} is no block of {models} models")
    return found


def _record(candidate: str, origin: str, placement: str, outcome: str, accepted: int, versus: str | None) -> Record:
    data = json.loads(outcome)
    if isinstance(accuracy := data.get("accuracy"), dict):
        accuracy.pop("would_show", None)  # which runs had in place of `short_db`
    found: Outcome = made(_OUTCOMES[data.pop("kind")], data)
    interval = None if versus is None else Interval(*(made(float, bound) for bound in json.loads(versus)))
    return Record(candidate, origin, placement, found, bool(accepted), interval)


_OUTCOMES: dict[str, type[Outcome]] = {kind.__name__: kind for kind in (Measured, Infeasible, Failed)}


def made(kind: Any, data: Any) -> Any:
    """A frozen value, or a part of one, of its type from plain data. Raises TypeError or KeyError where it is none."""
    kinds, origin = get_args(kind) or (kind,), get_origin(kind)
    if origin is tuple:
        return tuple(made(kinds[0], part) for part in data)
    if origin is Mapping:
        return {made(kinds[0], key): made(kinds[1], part) for key, part in dict(data).items()}
    whole = next((each for each in kinds if is_dataclass(each)), None)
    if whole is not None and (data is not None or NoneType not in kinds):
        hints = get_type_hints(whole)
        return whole(**{name: made(hints[name], part) for name, part in dict(data).items()})  # type: ignore[operator]
    if origin is Literal:
        fits = data in kinds
    else:
        fits = isinstance(data, (*kinds, int) if float in kinds else kinds) and data == data
    if not fits:
        raise TypeError(f"{data!r} is not of type {kind}")
    return data
