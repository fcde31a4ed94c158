"""SQLite files as data: whatever they hold, nothing in them runs, and no statement goes on without end.

A database can hold programs: views, triggers, generated columns, defaults and checks are SQL that its next reader runs.
So a file is opened only where every object in it is, word for word, one that Inlay makes.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Collection
from pathlib import Path

_STRIDE = 10_000  # steps of SQLite's machine between two looks at how many a statement has taken
_MOST_STEPS = 20_000_000
"""Of one statement: two million rows, or about a second. A damaged file may seem to hold more rows than bytes."""
_DEEPEST = 100  # levels of an expression: those that are run here have two
_EVERY = "SELECT type, name, tbl_name, sql FROM sqlite_master"

Objects = frozenset[tuple[str, str, str, str]]
"""Kind, name, table and text of each object of a schema; texts with single spaces."""


class NotOurs(Exception):
    """A file holds something that Inlay does not make; the message says what.

    Args:
        application: the number in the file's header that says whose it is.
    """

    def __init__(self, what: str, application: int) -> None:
        self.application = application
        super().__init__(what)


def objects_of(schema: str) -> Objects:
    """What a database holds once ``schema`` has been run on it."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(schema)
        return _objects(db)


def look(path: Path, known: Objects, needed: Collection[str]) -> None:
    """Read the schema of a file, and nothing else; nothing is written to it or beside it.

    Args:
        needed: names of tables that it must hold, unless it is empty.

    Raises:
        NotOurs: it holds anything else, or lacks a table.
        sqlite3.Error, UnicodeDecodeError: it is no database, or is damaged.
    """
    _refuse_special(path)
    mode = "mode=ro" if path.with_name(path.name + "-wal").exists() else "immutable=1"  # which makes no files beside it
    uri = f"{path.absolute().as_uri()}?{mode}"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
        _confine(db)
        _check(db, known, needed)


def connect(path: Path, known: Objects, needed: Collection[str]) -> sqlite3.Connection:
    """Open a file for reading and writing; Python begins no transactions. Arguments and errors as of :func:`look`.

    Its schema is read once more before anything else: the log beside it, which holds what was written last, may change
    it.
    """
    _refuse_special(path)
    db = sqlite3.connect(path, isolation_level=None)
    try:
        _confine(db)
        _check(db, known, needed)
        return db
    except BaseException:  # also where it is interrupted: nobody else could close it
        db.close()
        raise


def limit(db: sqlite3.Connection) -> None:
    """From now on each statement may take a limited number of steps; one that takes more fails, see :func:`reason`.

    Statements that are begun before the next call share them. What counts is no Python code: a signal is acted on
    behind the statement, and no exception is lost in it.
    """
    looks = itertools.chain(itertools.repeat(0, _MOST_STEPS // _STRIDE), itertools.repeat(1))
    db.set_progress_handler(looks.__next__, _STRIDE)


def reason(error: BaseException) -> str:
    """What went wrong in a statement, for people."""
    return "it asks for more steps than any file of Inlay" if str(error) == "interrupted" else str(error)


def _refuse_special(path: Path) -> None:
    """Raise sqlite3.OperationalError where the file, or one that belongs to it, is there and no regular file."""
    for each in (path, *(path.with_name(path.name + ending) for ending in ("-wal", "-shm", "-journal"))):
        if each.exists() and not each.is_file():
            raise sqlite3.OperationalError(f"{each.name} is not a regular file")


def _confine(db: sqlite3.Connection) -> None:
    """Settings for a file that nobody vouches for; before any of its pages is read."""
    db.execute("PRAGMA trusted_schema=OFF")  # functions with side effects are for statements of ours alone
    db.execute("PRAGMA cell_size_check=ON")  # damage is found as a page is read, not as it is written
    db.execute("PRAGMA mmap_size=0")  # else a file cut short meanwhile ends the process
    if hasattr(db, "setlimit"):  # from Python 3.11 on
        db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        db.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, _DEEPEST)
        db.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1)
    limit(db)


def _check(db: sqlite3.Connection, known: Objects, needed: Collection[str]) -> None:
    found = _objects(db, most=len(known) + 1)
    ((application,),) = db.execute("PRAGMA application_id")
    foreign = sorted(found - known)
    if foreign:
        kind, name, _, _ = foreign[0]
        is_other = any((kind, name) == (k, n) for k, n, _, _ in known)
        what = f"its {kind} {name} is not as Inlay makes it" if is_other else f"it holds a {kind} {name}"
        raise NotOurs(what, application)
    missing = sorted({*needed} - {name for _, name, _, _ in found})
    if found and missing:
        raise NotOurs(f"it lacks the table {missing[0]}", application)


def _objects(db: sqlite3.Connection, most: int = -1) -> Objects:
    rows = db.execute(f"{_EVERY} LIMIT {most}").fetchall()
    return frozenset((str(k), str(n), str(t), " ".join(str(sql or "").split())) for k, n, t, sql in rows)
