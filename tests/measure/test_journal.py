"""The journal: what was recorded is there again, whatever happened; other runs are refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from inlay.calibrate.tables import CalibrationChoice
from inlay.errors import JournalError
from inlay.measure.journal import Fact, Journal, Record
from inlay.run.facts import CHOICE, USUAL_REWRITES
from inlay.search.rewrite_choice import RewriteChoice
from inlay.trial import Accuracy, Failed, Infeasible, Interval, Latency, Measured, Outcome, OutputError
from inlay.types import Placement, Port, PortRewrite, QType

IDENTITY = {"model": "abc", "seed": "0"}
METHOD = Fact("method", str)
OUTCOMES: list[Outcome] = [
    Failed("compile", "refused: 'quoted' \n text"),
    Infeasible(Accuracy(False, 3.5, (OutputError("y", 3.5, 0.9),), reason="below 20 dB")),
    Measured(
        Latency(1234.5, Interval(1.5, 1.4, float("inf")), 6),
        Accuracy(True, 30.25, (OutputError("y", 30.25, 1.0), OutputError("z", 300.0, 1.0)), 0.5, 0.01, 7),
    ),
]


@contextmanager
def journal(path: Path, identity: dict[str, str] | None = None, restart: bool = False) -> Iterator[Journal]:
    opened = Journal(path, identity or IDENTITY, restart)
    try:
        yield opened
    finally:
        opened.close()


def recorded(number: int, outcome: Outcome) -> Record:
    return Record(f"key{number}", f"origin {number}", "placement", outcome, number == 2, Interval(1.1, 1.0, 1.2))


def fill(path: Path) -> None:
    with journal(path) as j:
        for number, outcome in enumerate(OUTCOMES):
            j.record(recorded(number, outcome))
        j.record_blocks("race", ["a", "b"], np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0.0, 0.01]))
        j.record_fact(METHOD, "mse")


def test_everything_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    fill(path)
    with journal(path) as j:
        assert not j.empty
        for number, outcome in enumerate(OUTCOMES):
            assert j.trial(f"key{number}") == recorded(number, outcome)
        assert j.trial("unknown") is None
        assert j.blocks("race", ["a", "b"]).tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert j.blocks("race", ["b", "a"]).shape == (0, 2), "blocks belong to their models in their order"
        assert j.blocks("confirm", ["a", "b"]).shape == (0, 2)
        assert j.fact(METHOD) == "mse"
        assert j.fact(METHOD.of("nothing")) is None
        assert j.trials() == [recorded(number, outcome) for number, outcome in enumerate(OUTCOMES)]


def test_a_placement_comes_back_with_its_rewrites(tmp_path: Path) -> None:
    sites = [(Port("a", 0), QType.UINT8), (Port("a", 1), QType.INT8), (Port("b", 1), QType.INT8)]
    at_b, at_c = PortRewrite(Port("b", 1), "off zero"), PortRewrite(Port("c", 1), "off zero")
    plain, moved = Placement(sites), Placement(sites, [at_b])
    with journal(tmp_path / "run.sqlite") as j:
        j.record_placement("plain", plain)
        j.record_placement("moved", moved)
        assert (j.placement("plain"), j.placement("moved")) == (plain, moved)
    assert plain != moved
    assert plain.digest != moved.digest
    assert (moved | plain).rewrites == {at_b} == plain.with_rewrites([at_b, at_c]).rewrites
    assert moved.without([Port("b", 1)]) == plain.without([Port("b", 1)])
    with pytest.raises(ValueError, match=r"selected at port c\[1\], which is not quantized"):
        Placement(sites, [at_c])
    with pytest.raises(ValueError, match="no name of a rewrite"):
        Placement.from_json([["a", 1, "int8", 7]])


def test_a_fact_is_decided_once(tmp_path: Path) -> None:
    with journal(tmp_path / "run.sqlite") as j:
        assert j.once(METHOD, lambda: "mse") == "mse"
        assert j.once(METHOD, lambda: "entropy") == "mse"
        assert j.once(METHOD.of("value"), lambda: "entropy") == "entropy", "one of many is another fact"


def test_the_first_record_of_a_candidate_stands(tmp_path: Path) -> None:
    with journal(tmp_path / "run.sqlite") as j:
        assert j.empty
        first = Record("key", "first", "p", OUTCOMES[0])
        j.record(first)
        j.record(Record("key", "second", "p", OUTCOMES[2], True))
        assert j.trial("key") == first


@pytest.mark.parametrize(
    ("identity", "word"),
    [
        ({"model": "abc", "seed": "1"}, "seed"),
        ({"model": "xyz", "seed": "0"}, "model"),
        ({"model": "abc"}, "seed"),
        ({**IDENTITY, "more": ""}, "more"),
    ],
)
def test_other_runs_are_refused(identity: dict[str, str], word: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    fill(path)
    with pytest.raises(JournalError, match=rf"differs in {word}.*--restart"), journal(path, identity):
        pass
    with journal(path) as j:
        assert j.trial("key0") is not None, "a refused run leaves the journal alone"
    with journal(path, identity, restart=True) as j:
        assert j.empty
        assert j.trial("key0") is None


def test_a_run_that_found_nothing_out_may_be_replaced(tmp_path: Path) -> None:
    """Otherwise a mistyped option would occupy the folder. Calibration is work, too, and stays."""
    path = tmp_path / "run.sqlite"
    with journal(path, {"model": "mistyped"}):
        assert path.exists()
    assert not list(tmp_path.iterdir()), "what holds nothing goes"
    path.touch()  # what a run leaves that was killed as it made its journal
    with journal(path, {"model": "mistyped"}) as j:
        j.record_seconds()
    with journal(path) as j:
        j.record_fact(METHOD, "mse")
    with pytest.raises(JournalError, match="model"), journal(path, {"model": "mistyped"}):
        pass
    with journal(path) as j:
        assert j.fact(METHOD) == "mse"


def foreign(path: Path, content: str) -> None:
    db = sqlite3.connect(path)
    db.executescript(content)
    db.close()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("CREATE TABLE mine (a TEXT)", "is not a journal of Inlay"),
        ("CREATE TABLE trials (a TEXT)", "is not a journal of Inlay"),
        ("CREATE TABLE trials (a TEXT); PRAGMA application_id = 0x496E6C79", "is damaged"),
        ("PRAGMA journal_mode = WAL; CREATE TABLE mine (a TEXT); INSERT INTO mine VALUES (1)", "is not a journal"),
        (None, "file is not a database"),
    ],
)
def test_a_file_that_is_no_journal_is_left_alone(content: str | None, what: str, restart: bool, tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    if content is None:
        path.write_text("dear diary, " * 50)
    else:
        foreign(path, content)
    before = path.read_bytes()
    with pytest.raises(JournalError, match=what) as error, journal(path, restart=restart):
        pass
    assert "move it away" in str(error.value)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.sqlite"]


@pytest.mark.parametrize(
    "value", ["[]", "[1.0]", "[1.0, 2.0, 3.0]", "[1.0, NaN]", "[1.0, 0.0]", "[1.0, -1.0]", "[1.0, [2.0]]"]
)
def test_a_block_that_nothing_measures_is_damage(value: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    fill(path)
    with journal(path) as j:
        assert len(j.blocks("race", ["a", "b"])) == len(j.readings())
    foreign(path, f"UPDATE blocks SET ns = '{value}'")
    with journal(path) as j:
        for ask in (j.readings, lambda: j.blocks("race", ["a", "b"])):
            with pytest.raises(JournalError, match=r"is damaged.*--restart"):
                ask()


def test_a_run_of_before_is_read(tmp_path: Path) -> None:
    """Its accuracies say how many samples would show the bound, which nothing asks for any more."""
    path = tmp_path / "run.sqlite"
    fill(path)
    foreign(path, "UPDATE trials SET outcome = replace(outcome, '\"short_db\": 0.0', '\"would_show\": 18')")
    with journal(path) as j:
        assert [r.outcome for r in j.trials()] == [*OUTCOMES]


@pytest.mark.parametrize("value", ["not JSON", "[1", '"text"', "[" * 5000])
def test_a_damaged_record_is_one_line(value: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    fill(path)
    foreign(path, f"UPDATE trials SET outcome = '{value}'; UPDATE blocks SET ns = '{value}'")
    with journal(path) as j:
        for ask in (j.trials, lambda: j.trial("key0"), lambda: j.blocks("race", ["a", "b"])):
            with pytest.raises(JournalError, match=r"is damaged.*--restart"):
                ask()


@pytest.mark.parametrize(
    "value",
    [
        {"method": "guesswork"},
        {"chosen": {"x": "guesswork"}},
        {"chosen": "minmax"},
        {"shifts": {"conv": ["much"]}},
        {"scores": {"minmax": "good"}},
        {"report": {"methods": 3}},
    ],
)
def test_a_choice_of_ranges_that_is_none_is_damage(value: dict[str, object], tmp_path: Path) -> None:
    """What would fail only later, where it is used, is found as it is read."""
    path = tmp_path / "run.sqlite"
    with journal(path) as j:
        j.record_fact(CHOICE, CalibrationChoice("mse"))
        assert j.fact(CHOICE) == CalibrationChoice("mse")
    foreign(path, f"UPDATE facts SET value = '{json.dumps({**CalibrationChoice('mse').as_json(), **value})}'")
    with journal(path) as j, pytest.raises(JournalError, match=r"is damaged.*--restart"):
        j.fact(CHOICE)


def test_more_sessions_than_there_can_be_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    fill(path)
    foreign(path, "UPDATE sessions SET number = 9223372036854775807")
    with pytest.raises(JournalError, match="is damaged"), journal(path):
        pass


def test_time_adds_up_over_sessions_however_they_end(tmp_path: Path) -> None:
    path, now = tmp_path / "run.sqlite", [3.0]
    first = Journal(path, IDENTITY, seconds=lambda: now[0])
    assert first.spent_s == 0.0
    first.record_fact(METHOD, "mse")
    now[0] = 5.0
    first.record(recorded(0, OUTCOMES[0]))
    now[0] = 6.0  # killed here: what came after the last record is not known
    second = Journal(path, IDENTITY, seconds=lambda: 2.0)
    assert second.spent_s == 5.0
    second.record_seconds()
    second.close()
    third = Journal(path, IDENTITY)
    assert third.spent_s == 7.0
    third.close()
    first.close()


def test_a_journal_cut_anywhere_is_whole_or_refused(tmp_path: Path) -> None:
    """Never a wrong record, never another exception: a prefix of what was recorded, or a JournalError."""
    path = tmp_path / "whole" / "run.sqlite"
    path.parent.mkdir()
    fill(path)
    size = path.stat().st_size
    refused = 0
    for length in [*range(0, 200, 20), *range(200, size, 997), size - 1]:
        cut = tmp_path / f"cut{length}"
        cut.mkdir()
        (cut / "run.sqlite").write_bytes(path.read_bytes()[:length])
        try:
            with journal(cut / "run.sqlite") as j:
                for number, outcome in enumerate(OUTCOMES):
                    found = j.trial(f"key{number}")
                    assert found is None or found.outcome == outcome
                j.blocks("race", ["a", "b"])
                j.fact(METHOD)
                j.trials()
        except JournalError:
            refused += 1
    assert refused > 5


def test_a_write_ahead_log_cut_anywhere_gives_a_prefix(tmp_path: Path) -> None:
    """What a power cut leaves: the transactions up to the cut, in order, and the run goes on."""
    path = tmp_path / "live" / "run.sqlite"
    path.parent.mkdir()
    with journal(path) as j:
        for number in range(8):
            j.record(Record(f"key{number}", "o", "p", OUTCOMES[number % 3]))
        log = path.with_name("run.sqlite-wal")
        whole = log.read_bytes()
        lengths = sorted({0, 31, 32, 1000, *range(0, len(whole), 3001), len(whole)})
        for length in lengths:
            copy = tmp_path / f"at{length}"
            copy.mkdir()
            shutil.copy(path, copy / "run.sqlite")
            (copy / "run.sqlite-wal").write_bytes(whole[:length])
    counts = []
    for length in lengths:
        with journal(tmp_path / f"at{length}" / "run.sqlite") as j:
            keys = [t.candidate for t in j.trials()]
            assert keys == [f"key{n}" for n in range(len(keys))]
            counts.append(len(keys))
            j.record(Record("after", "o", "p", OUTCOMES[0]))
            assert j.trial("after") is not None
    assert counts == sorted(counts)
    assert counts[-1] == 8
    assert counts[0] < 8, "the case is worth something"


def test_a_killed_writer_loses_nothing_that_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    code = (
        "import sys; from pathlib import Path; from inlay.measure.journal import Journal, Record\n"
        "from inlay.trial import Failed\n"
        f"j = Journal(Path({str(path)!r}), {IDENTITY!r})\n"
        "for n in range(10**6):\n"
        "    j.record(Record(f'key{n}', 'o', 'p', Failed('run', 'x'))); print(n, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            if int(line) == 20:
                os.kill(process.pid, signal.SIGKILL)
                break
        said = [20, *map(int, lines.read().split())]
    process.wait()
    with journal(path) as j:
        keys = [t.candidate for t in j.trials()]
    assert keys == [f"key{n}" for n in range(len(keys))]
    assert len(keys) > max(said)


def test_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with journal(path) as j:
        other = sqlite3.connect(path, isolation_level=None)
        try:
            other.execute("DROP TABLE trials")
        finally:
            other.close()
        with pytest.raises(JournalError, match="cannot be written"):
            j.record(Record("key", "o", "p", OUTCOMES[0]))


def test_a_journal_in_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be used"), journal(tmp_path / "no" / "run.sqlite"):
        pass


def test_rewrites_that_usually_pay_are_read_back(tmp_path: Path) -> None:
    rewrites = frozenset(PortRewrite(Port(f"conv {i}", i), "rows") for i in range(3))
    found = RewriteChoice(rewrites, {"conv 0": 0.5, "conv 2": 0.25})
    for choice in (found, RewriteChoice()):
        path = tmp_path / f"{len(choice.rewrites)}.sqlite"
        with journal(path) as kept:
            kept.record_fact(USUAL_REWRITES, choice)
        with journal(path) as kept:
            assert kept.fact(USUAL_REWRITES) == choice
