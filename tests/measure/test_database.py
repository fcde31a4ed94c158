"""Databases of strangers: whatever SQL one holds, none of it runs, and no statement goes on without end."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from inlay.errors import JournalError
from inlay.measure import database
from inlay.measure.journal import Fact, Journal, spent_in

IDENTITY = {"model": "abc"}
KEPT = Fact("kept", str)
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
HOSTILE = {
    "a view": f"CREATE VIEW v AS {ENDLESS}",
    "a view in place of a table": f"DROP TABLE sessions; CREATE VIEW sessions(a, b) AS SELECT 1, ({ENDLESS})",
    "a trigger": f"CREATE TRIGGER t AFTER INSERT ON sessions BEGIN UPDATE sessions SET seconds = ({ENDLESS}); END",
    "a trigger that forgets": "CREATE TRIGGER t AFTER INSERT ON sessions BEGIN DELETE FROM trials; END",
    "a generated column": "DROP TABLE sessions; CREATE TABLE sessions "
    "(number INTEGER PRIMARY KEY, seconds REAL NOT NULL AS (length(hex(zeroblob(99999)))))",
    "a check": "DROP TABLE facts; CREATE TABLE facts "
    "(key TEXT PRIMARY KEY, value TEXT NOT NULL CHECK (length(zeroblob(999999999)) > 1))",
    "a default": "DROP TABLE facts; CREATE TABLE facts "
    "(key TEXT PRIMARY KEY, value TEXT NOT NULL DEFAULT (length(zeroblob(999999999))))",
    "an index on an expression": "CREATE INDEX i ON sessions (hex(zeroblob(9999)))",
    "a table of somebody else": "CREATE TABLE other (a)",
    "a column more": "ALTER TABLE facts ADD COLUMN more",
}


def journal_at(path: Path) -> None:
    with closing(Journal(path, IDENTITY)) as journal:
        journal.record_fact(KEPT, "yes")


def spoil(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(sql)


@pytest.mark.parametrize("identity", [IDENTITY, None], ids=["resumed", "read"])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("what", HOSTILE)
def test_a_schema_that_is_not_ours_is_refused_before_any_of_it_runs(
    what: str, restart: bool, identity: dict[str, str] | None, tmp_path: Path
) -> None:
    path = tmp_path / "run.sqlite"
    journal_at(path)
    spoil(path, HOSTILE[what])
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"run\.sqlite is damaged \(it") as error:
        Journal(path, identity, restart)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.sqlite"]


def test_a_virtual_table_is_refused_before_its_module_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    journal_at(path)
    spoil(  # a module that nobody has: who asks it fails otherwise
        path,
        "PRAGMA writable_schema = ON; INSERT INTO sqlite_master VALUES "
        "('table', 'vt', 'vt', 0, 'CREATE VIRTUAL TABLE vt USING absent(a)')",
    )
    with pytest.raises(JournalError, match="it holds a table vt"):
        Journal(path, IDENTITY)


def test_what_the_file_beside_it_adds_is_refused_too(tmp_path: Path) -> None:
    """The write-ahead log holds what was written last: here a trigger, while the file itself is in order."""
    path, copy = tmp_path / "run.sqlite", tmp_path / "copy"
    journal_at(path)
    copy.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(HOSTILE["a trigger that forgets"])
        for name in ("run.sqlite", "run.sqlite-wal"):
            shutil.copy(tmp_path / name, copy / name)
    shutil.copy(copy / "run.sqlite", alone := tmp_path / "alone.sqlite")
    with closing(Journal(alone, IDENTITY)) as journal:
        assert journal.fact(KEPT) == "yes", "the control: without the log there is nothing wrong"
    with pytest.raises(JournalError, match="it holds a trigger t"):
        Journal(copy / "run.sqlite", IDENTITY)


def test_an_older_journal_of_ours_opens(tmp_path: Path) -> None:
    """Those of before sessions were counted lack a table; other spaces in the same text are no other schema."""
    path = tmp_path / "run.sqlite"
    journal_at(path)
    spoil(
        path,
        "DROP TABLE sessions; DROP TABLE identity; "
        "CREATE TABLE identity (key TEXT   PRIMARY KEY,\n value TEXT NOT NULL)",
    )
    with closing(Journal(path, IDENTITY)) as journal:
        assert (journal.fact(KEPT), journal.spent_s) == ("yes", 0.0)


def test_more_rows_than_bytes_end_in_one_line(tmp_path: Path) -> None:
    """Pages that all point to one page hold rows without end: 300 to the power of their levels."""
    path = tmp_path / "run.sqlite"
    journal_at(path)
    with closing(sqlite3.connect(path)) as db:
        ((root,),) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sessions'")
        ((size,),) = db.execute("PRAGMA page_size")
        ((pages,),) = db.execute("PRAGMA page_count")
    raw = bytearray(path.read_bytes())
    leaf, levels, cells = pages + 1, 5, 300
    raw += raw[(root - 1) * size : root * size]  # the leaf with its rows
    for level in range(levels):  # each above the one before it; the last one in the place of the root
        child = leaf + level
        page = bytearray(size)
        top = size - 5 * cells
        page[:12] = struct.pack(">BHHHBI", 5, 0, cells, top, 0, child)
        for number in range(cells):
            struct.pack_into(">H", page, 12 + 2 * number, top + 5 * number)
            struct.pack_into(">IB", page, top + 5 * number, child, 1)
        if level == levels - 1:
            raw[(root - 1) * size : root * size] = page
        else:
            raw += page
    raw[28:32] = struct.pack(">I", len(raw) // size)
    path.write_bytes(raw)
    with closing(sqlite3.connect(path)) as db:
        ((held,),) = db.execute("SELECT COUNT(*) FROM (SELECT seconds FROM sessions LIMIT 1000000)")
    assert held == 1_000_000, "the control: SQLite itself sees no end of it"
    with pytest.raises(JournalError, match=r"run\.sqlite is damaged \(it asks for more steps than any file of Inlay"):
        spent_in(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are of POSIX")
@pytest.mark.parametrize("name", ["run.sqlite", "run.sqlite-wal", "run.sqlite-journal"])
def test_what_is_no_regular_file_is_not_opened(name: str, tmp_path: Path) -> None:
    journal_at(tmp_path / "run.sqlite")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(JournalError, match=f"{name} is not a regular file"):
        Journal(tmp_path / "run.sqlite", IDENTITY)


def test_ordinary_work_is_within_the_limit() -> None:
    """A journal of a hundred thousand rows is read as always."""
    with closing(sqlite3.connect(":memory:")) as db:
        database.limit(db)
        db.execute("CREATE TABLE t (number INTEGER PRIMARY KEY, text TEXT)")
        db.executemany("INSERT INTO t (text) VALUES (?)", [("x",)] * 100_000)
        assert len(db.execute("SELECT * FROM t ORDER BY number").fetchall()) == 100_000
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            db.execute(ENDLESS)
