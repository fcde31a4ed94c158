"""What commands print: wrapped at words on a terminal of 80 columns, whole lines in a pipe, and never cut."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.cli.terminal import Table, laid_out
from inlay.errors import UNPROVEN
from inlay.testing import Builder, random_feed
from tests.cli.test_json import COMMANDS, ELSEWHERE, NULL, command_names
from tests.support.command_line import RunCommand

WIDTH = 80
LONG = "/backbone/stage_4/block_7/branch_main/depthwise/very_long_name_of_a_node_of_an_exporter"
ALSO = {
    "tune --dry-run": ("M", "-o", "P", "--data", "D", *NULL, "--dry-run"),
    "tune without data": ("M", "-o", "P", "--max-measurements", "4", *NULL),
    "quantize without data": ("M", "-o", "Q2", *NULL),
    "quantize --explain": ("M", "-o", "Q3", "--data", "D", *NULL, "--explain"),
    "explain --all": ("Q", *NULL, "--all"),
    "explain of a float model": ("M", *NULL),
    "explain --repair": ("Q", *NULL, "--repair", "R"),
    "regions --all": ("M", *NULL, "--all"),
}
"""Further ways of commands that print something else; the first word is the command."""


def model() -> onnx.ModelProto:
    b = Builder()
    x = b.node("tanh", "Tanh", [b.input("x", (1, 3, 8, 8))])
    for n in range(3):
        x = b.conv(f"{LONG}_{n}", x, 4)
    b.output(x)
    return b.model()


def cut(text: str) -> list[str]:
    """Lines that hide something: not a digest by its first half, nor an option's value that the user chooses."""
    shown = re.sub(r"(sha256\s+[0-9a-f]{16}|=)…", "", text)
    return [t for t in shown.splitlines() if re.search("…|[│┃┏┡┌]", t)]


def spilled(text: str) -> list[str]:
    """Lines that a terminal of 80 columns breaks; a name or path that is longer alone is on a line of its own."""
    return [t for t in text.splitlines() if len(t) > WIDTH and len(t.split()) > 1]


def folder_with_inputs(folder: Path) -> dict[str, str]:
    onnx.save(model(), folder / "M.onnx")
    feeds = [random_feed(model(), seed) for seed in range(4)]
    np.savez(folder / "D.npz", **{name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]})
    return {"M": "M.onnx", "D": "D.npz", **{name: f"{name}.onnx" for name in ("Q", "Q2", "Q3", "S", "R")}}


@pytest.mark.parametrize("columns", [str(WIDTH), ""])
@pytest.mark.exhaustive
def test_every_command_reads_well(
    columns: str, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", columns)
    files = folder_with_inputs(tmp_path)
    texts = {}
    for name, arguments in [*((n, a) for n, (a, _) in COMMANDS.items()), *ALSO.items()]:
        command = name.split() if name in COMMANDS else name.split()[:1]
        code, out, err = run(*command, *(files.get(a, a) for a in arguments))
        assert code == (UNPROVEN if name == "tune without data" else 0), (name, err)
        assert not cut(out), name  # the log of a search names units by their two ends, on purpose
        texts[name] = out
        if columns:
            assert not spilled(out), name
    if not columns:
        long = {name for name, text in texts.items() if spilled(text)}
        assert {"explain", "quantize", "targets"} <= long, "in a pipe a line is whole"
        assert all(LONG in texts[n] for n in ("explain --all", "quantize --explain", "regions --all"))


def test_the_help_of_every_command_fits(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    assert set(ELSEWHERE) <= set(command_names())
    for name in ("", *command_names()):
        code, out, _ = run(*name.split(), "--help")
        assert code == 0
        assert not [t for t in out.splitlines() if len(t) > WIDTH], name
        assert not re.search("[│┃┏╭]", out), "a box"


def on_a_terminal(arguments: Sequence[str], folder: Path) -> str:
    """What the command shows on a real terminal of 80 columns."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "inlay", *arguments]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, cwd=folder, env=environment)
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 4096):
            said += piece
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return said.decode()


@pytest.mark.exhaustive
def test_a_terminal_says_how_wide_it_is(tmp_path: Path) -> None:
    folder_with_inputs(tmp_path)
    shown = on_a_terminal(["quantize", "M.onnx", "-o", "Q.onnx", *NULL, "--explain"], tmp_path)
    assert not spilled(shown)
    assert not cut(shown)
    assert "\x1b" not in shown
    assert len(shown.splitlines()[0]) <= WIDTH


words = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20)
cells = st.lists(words, max_size=5).map(" ".join)


@given(st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=4), st.integers(30, 90))
def test_a_table_keeps_every_character_and_the_width(rows: list[list[str]], width: int) -> None:
    table = Table("<><", rows, indent=2)
    lines = list(laid_out([table], width))
    assert max(map(len, lines), default=0) <= width
    letters = "".join("".join(lines).split())
    assert sorted(letters) == sorted("".join("".join("".join(r) for r in rows).split()))
    assert len(list(laid_out([table]))) == len(rows), "one row, one line, where there is no edge"


@given(st.integers(0, 10), st.lists(words, min_size=1, max_size=30), st.integers(30, 90))
def test_prose_is_broken_between_words(indent: int, said: list[str], width: int) -> None:
    line = " " * indent + " ".join(said)
    shown = list(laid_out([line], width))
    assert " ".join(shown).split() == said
    assert max(map(len, shown)) <= width
    assert list(laid_out([line])) == [line]


def test_the_checks_find_what_is_wrong() -> None:
    assert cut("0.123 ms  /backbone…depthwise")
    assert cut("│ 1.2 │")
    assert not cut("Wrote a.onnx (sha256 0123456789abcdef…).")
    assert spilled("two " + "words" * 20)
    assert not spilled("word" * 30)
