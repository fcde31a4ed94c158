"""Cases about what runs leave behind: journals, results, and the cost database."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from inlay.report.exports import FORMS
from tests.attack.case import Case
from tests.attack.choices import Choices
from tests.attack.damage import changed, damaged, odd
from tests.attack.protos import TEXTS
from tests.attack.seeds import MODEL, TUNE, Seeds, put_run

_EXPORTS = [("export", "@/out", "--as", form) for form in FORMS]


def journal(choose: Choices, seeds: Seeds, folder: Path) -> Case:
    """The journal of a finished run: flipped bytes, zeroed pages, other tables, columns, values, JSON."""
    put_run(seeds, folder)
    path = folder / "out" / "run.sqlite"
    action = choose.below(6)
    if action == 5:
        return _hostile(choose, path)
    if action == 0:
        path.write_bytes(damaged(path.read_bytes(), choose))
    elif action == 1:
        raw = bytearray(path.read_bytes())
        page = 4096 * choose.below(max(1, len(raw) // 4096))
        raw[page : page + 4096] = choose.among((bytes(4096), b"\xff" * 4096))
        path.write_bytes(raw)
    else:
        _change_rows(path, choose)
    if choose.one_in(10):
        (folder / "out" / f"run.sqlite-{choose.among(('wal', 'shm', 'journal'))}").write_bytes(choose.bytes(200))
    return Case("journal", _reader(choose), real=choose.one_in(300))


_ENDLESS = "(WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c)"
_TABLES = ("identity", "trials", "blocks", "facts", "placements", "feeds", "sessions")
_OBJECTS = (
    "CREATE VIEW v AS SELECT {endless}",
    "DROP TABLE {table}; CREATE VIEW {table}(key, value) AS SELECT 1, {endless}",
    "CREATE TRIGGER t AFTER INSERT ON {table} BEGIN UPDATE sessions SET seconds = {endless}; END",
    "CREATE TRIGGER t BEFORE INSERT ON {table} BEGIN DELETE FROM trials; END",
    "CREATE TRIGGER t AFTER DELETE ON {table} BEGIN INSERT INTO facts SELECT hex(randomblob(8)), '1' FROM trials; END",
    "CREATE INDEX i ON {table} (length(hex(zeroblob(99999))))",
    "ALTER TABLE {table} ADD COLUMN more AS (length(hex(zeroblob(99999))))",
    "ALTER TABLE {table} ADD COLUMN more CHECK (length(hex(zeroblob(99999))) > 0)",
    "ALTER TABLE {table} ADD COLUMN more DEFAULT ('x')",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', 'CHECK (1)')",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 2",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE VIRTUAL TABLE x USING absent(a)'",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET name = 'sqlite_master'",
    "ANALYZE",
)
"""What databases may hold besides rows."""


def _hostile(choose: Choices, path: Path) -> Case:
    """SQL in the journal of a run, or of a fleet: in the file, or in the log beside it."""
    in_log = choose.one_in(3)
    sql = choose.among(_OBJECTS).format(table=choose.among(_TABLES), endless=_ENDLESS)
    if choose.one_in(4):
        (path.parent / "fleet.yaml").write_text(
            "budget: 2s\nmodels: [../model/model.onnx]\ntargets: ['null']\n", encoding="utf8"
        )
        path = path.rename(path.with_name("fleet.sqlite"))
    db = sqlite3.connect(path)
    try:
        db.execute(f"PRAGMA journal_mode = {'WAL' if in_log else 'DELETE'}")
        db.executescript(sql)
        held = {ending: path.with_name(path.name + ending) for ending in ("", "-wal")}
        kept = {ending: file.read_bytes() for ending, file in held.items() if in_log and file.exists()}
    except sqlite3.Error:
        kept = {}  # not on this table: another case will do
    db.close()
    for ending, data in kept.items():
        path.with_name(path.name + ending).write_bytes(data)
    if path.name == "fleet.sqlite":
        return Case("journal", ("fleet", "@/out/fleet.yaml", "-o", "@/out"))
    return Case("journal", _reader(choose), real=choose.one_in(300))


def _reader(choose: Choices) -> tuple[str, ...]:
    """A command that reads what a run wrote."""
    run = ("tune", MODEL, "-o", "@/out", "--data", "@/given/samples.npz", *TUNE)
    wish = choose.among((("--fastest",), ("--min-sqnr", "10"), ("--max-drop", "1%")))
    shown = choose.among([("report", "@/out"), *_EXPORTS])
    return choose.weighted(((6, ("select", "@/out", *wish)), (3, run), (2, shown)))


def _change_rows(path: Path, choose: Choices) -> None:
    with sqlite3.connect(path) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = choose.among(tables)
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        rows = [rowid for (rowid,) in db.execute(f"SELECT rowid FROM {table}")]
        action = choose.below(8)
        try:
            if action == 0:
                db.execute(f"DROP TABLE {table}")
            elif action == 1:
                db.execute(f"DELETE FROM {table}")
            elif action == 2:
                db.execute(f"ALTER TABLE {table} RENAME COLUMN {choose.among(columns)} TO other")
            elif action == 3:
                db.execute(f"DROP TABLE {table}")
                db.execute(f"CREATE TABLE {table} (a, b)")
            elif rows:
                column, row = choose.among(columns), choose.among(rows)
                (held,) = db.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (row,)).fetchone()
                db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (_value(held, choose), row))
        except (sqlite3.Error, OverflowError):
            pass  # the schema refuses it: another case will do
    db.close()


def _value(held: Any, choose: Choices) -> Any:
    if isinstance(held, bytes):
        return damaged(held, choose)
    if isinstance(held, str):
        try:
            plain = json.loads(held)
        except ValueError:
            return choose.among((*TEXTS, None))
        if choose.one_in(3):
            return damaged(held.encode(), choose).decode(errors="replace")
        return json.dumps(changed(plain, choose), default=str)
    value = odd(choose)
    return value if not isinstance(value, int) or abs(value) < 2**63 else None


def result(choose: Choices, seeds: Seeds, folder: Path) -> Case:
    """``result.json`` of a finished run, or the cost database of its target."""
    put_run(seeds, folder)
    if choose.one_in(4):
        _spoil_costs(choose, seeds, folder)
        run = ("tune", MODEL, "-o", "@/out/new", "--data", "@/given/samples.npz", *TUNE, "--strategy", "guided")
        return Case("result", run)
    path = folder / "out" / "result.json"
    if choose.one_in(3):
        path.write_bytes(damaged(path.read_bytes(), choose))
    else:
        spoilt = json.loads(path.read_text(encoding="utf8"))
        for _ in range(1 + choose.below(3)):
            part = choose.among(["model", "baseline", "best", "search"])
            if choose.one_in(2) and isinstance(spoilt, dict) and part in spoilt:
                spoilt[part] = changed(spoilt[part], choose)
            else:
                spoilt = changed(spoilt, choose)
        path.write_text(json.dumps(spoilt, default=str), encoding="utf8")
    return Case("result", choose.among([("select", "@/out", "--fastest"), ("report", "@/out"), *_EXPORTS]))


def _spoil_costs(choose: Choices, seeds: Seeds, folder: Path) -> None:
    shutil.copytree(seeds.run / "cache", folder / "cache", dirs_exist_ok=True)
    for path in (folder / "cache").rglob("*.json"):
        if choose.one_in(3):
            path.write_bytes(damaged(path.read_bytes(), choose))
        else:
            spoilt = json.loads(path.read_text(encoding="utf8"))
            for _ in range(1 + choose.below(3)):
                spoilt["costs"] = changed(spoilt.get("costs"), choose)
            path.write_text(json.dumps(spoilt, default=str), encoding="utf8")
