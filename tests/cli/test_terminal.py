"""Text of models reaches the terminal as text: no markup, no control characters, no encoding that ends a run."""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from inlay.cli import commands
from inlay.cli.progress import LiveTable, describe
from inlay.cli.terminal import Terminal, plain
from inlay.testing import Builder
from inlay.trial import Accuracy, Interval, Latency, Measured, Proposal, Trial
from inlay.types import Placement
from tests.support.command_line import FAST, RunCommand
from tests.support.fixtures import SaveModel

HOSTILE = (
    "[/layer2]",
    "[bold red]x[/]",
    "\x1b]0;owned\x07\x1b[2J",
    "up\x1b[1Adown\r",
    "two\nlines",
    "\u202eright",
    "\x9b31m",
)
"""Rich's markup, a window's title, cursor movement, line breaks, turned direction, an escape code of one byte."""


def hostile_model() -> onnx.ModelProto:
    b = Builder()
    x = b.input(HOSTILE[2], (1, 3, 8, 8))
    for name in HOSTILE:
        x = b.conv(name, x, 3)
    b.output(b.node(HOSTILE[0] + "relu", "Relu", [x]))
    return b.model()


def shows_text_only(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@given(st.text())
def test_any_text_becomes_one_printable_line(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable()
    assert plain(shown) == shown
    assert (shown == text) == text.isprintable(), "what is printable stays as it is"


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, ["tune", "M", "-o", "OUT", *FAST[:-1]]),
        (0, ["quantize", "M", "-o", "Q", "--target", "null", "--explain"]),
        (0, ["regions", "M", "--target", "null", "--all"]),
        (0, ["regions", "M", "--target", "null", "--json"]),
        (0, ["bench", "M", "M", "--target", "null"]),
        (1, ["quantize", "M", "-o", "Q", "--target", "null", "--data", "D"]),
        (2, ["quantize", "M", "-o", "Q", "--target", "\x1b[31mnothing\n[/x]"]),
        (1, ["tune", "\x1b]0;owned\x07.onnx"]),
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_names_control_nothing(
    code: int,
    arguments: list[str],
    terminal: bool,
    run: RunCommand,
    save: SaveModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    (tmp_path / "D.npz").write_bytes(b"not an archive")
    places = {"M": save(hostile_model(), "[/b].onnx"), "D": tmp_path / "D.npz"}
    places |= {"OUT": tmp_path / "[/out]", "Q": tmp_path / "[/q].onnx"}
    found, out, err = run(*(places.get(a, a) for a in arguments))
    assert found == code, err
    if not terminal:
        assert shows_text_only(out + err)
    assert not any(mark in out + err for mark in ("\x1b]0;", "\x07", "\x1b[2J", "\u202e", "\x9b"))


def test_the_live_table_and_others_show_strings_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    terminal = Terminal()
    terminal.file = io.StringIO()
    table = Table(title="[/t]\x1b[2J", caption="[/c]")
    table.add_row(*HOSTILE[:4])
    terminal.print(table, width=200)
    live = LiveTable(terminal)
    for name in HOSTILE:
        live.stage(name)
    live.close()
    shown = terminal.file.getvalue()
    assert "[/layer2]" in shown
    assert "[/t]" in shown
    assert "\x1b]0;" not in shown
    assert "\x1b[2J" not in shown


@pytest.mark.exhaustive
def test_an_encoding_without_the_characters(save: SaveModel, tmp_path: Path) -> None:
    """Typographic quotes, arrows and names in other scripts, where standard output takes ASCII only."""
    b = Builder()
    b.output(b.conv("Schicht-ß-層", b.input("x", (1, 3, 8, 8)), 4))
    path = save(b.model(), "modell-ß.onnx")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for more in (["--explain"], ["--recipe", "ß"]):
        command = [sys.executable, "-m", "inlay", "quantize", str(path), "-o", str(tmp_path / "q.onnx")]
        done = subprocess.run([*command, "--target", "null", *more], capture_output=True, env=environment, check=False)
        assert done.returncode == (0 if "--explain" in more else 2), done.stderr
        assert b"Traceback" not in done.stderr
        assert rb"\xdf" in done.stdout + done.stderr


def test_a_file_name_that_is_no_text(run: RunCommand, tmp_path: Path) -> None:
    strange = os.fsdecode(b"model-\xff.onnx")
    code, _, err = run("quantize", tmp_path / strange, "-o", tmp_path / "q.onnx")
    assert code == 1
    assert r"model-\xff.onnx: a name in this path is not UTF-8" in err


def test_the_unexpected_is_one_line_and_whole_on_request(
    run: RunCommand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> None:
        raise LookupError("[/node]\x1b[2J\nmore")

    with pytest.raises(LookupError):
        commands.run(wrong)
    monkeypatch.delenv("INLAY_TRACEBACK")
    assert commands.run(wrong) == 1
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert r"LookupError: [/node]\x1b[2J more" in err
    assert "INLAY_TRACEBACK=1" in err


def test_an_interval_without_an_end_is_not_shown() -> None:
    def shown(low: float, high: float) -> str:
        latency = Latency(1e6, Interval(1.07, low, high), 2)
        return describe(Trial(Proposal(Placement(), "float"), Measured(latency, Accuracy(True, 30.0))))

    assert shown(0.0, math.inf) == "too few readings, 30.0 dB"
    assert shown(1.0, 1.1) == "1.070x [1.000, 1.100], 30.0 dB"
