"""``--json`` of every command: one JSON object on standard output, and nothing else there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer.main

from inlay.cli.commands import app
from inlay.cli.terminal import as_data
from inlay.testing import random_feed
from inlay.testing.models import residual_model
from tests.support.command_line import RunCommand

NULL = ("--target", "null")
COMMANDS: dict[str, tuple[Sequence[str], set[str]]] = {
    "tune": (
        ("M", "-o", "O", "--data", "D", "--max-measurements", "4", "--accept-unproven", *NULL, "-q"),
        {"best", "anchors"},
    ),
    "bench": (("M", "M", *NULL, "--blocks", "2", "--processes", "1"), {"models"}),
    "quantize": (("M", "-o", "Q", "--data", "D", *NULL), {"path", "sha256", "decisions"}),
    "select": (("O", "--fastest", "--to", "S"), {"path", "sha256", "speedup", "size_bytes"}),
    "inspect": (("M", *NULL), {"inputs", "operators"}),
    "report": (("O",), {"path"}),
    "export": (("O", "--as", "csv", "--to", "trials.csv"), {"path"}),
    "card": (("O",), {"path"}),
    "check": (("O", "--fail-sqnr", "1"), {"sqnr_db", "exit_code"}),
    "regions": (("M", *NULL), {"regions"}),
    "explain": (("Q", *NULL), {"operators"}),
    "cache show": (("O/pattern_cache.yaml",), set()),
    "cache merge": (("O/pattern_cache.yaml", "-o", "merged.yaml"), {"path", "patterns"}),
    "targets": ((), {"targets"}),
}
ELSEWHERE = {
    "calibrate-machine": "takes a minute",
    "lower": "its own test",
    "fleet": "its own tests",
    "record": "its own tests",
    "folder": "its own tests, where its libraries are",
    "mcp": "its own tests: it speaks JSON all the time",
}


GROUP: Any = typer.main.get_command(app)


def command_names() -> Iterator[str]:
    for name in GROUP.list_commands(None):
        command = GROUP.get_command(None, name)
        yield from (f"{name} {each}" for each in command.commands) if hasattr(command, "commands") else (name,)


def test_every_command_has_it() -> None:
    assert {*COMMANDS, *ELSEWHERE} == set(command_names())
    for name in command_names():
        command = GROUP
        for word in name.split():
            command = command.get_command(None, word)
        assert name == "mcp" or any("--json" in p.opts for p in command.params), name


def test_each_prints_one_object_and_nothing_else(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(residual_model(), "M.onnx")
    feeds = [random_feed(residual_model(), seed) for seed in range(4)]
    np.savez("D.npz", **{name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]})
    files = {"M": "M.onnx", "Q": "Q.onnx", "S": "S.onnx", "D": "D.npz"}
    for name, (arguments, keys) in COMMANDS.items():
        code, out, err = run(*name.split(), *(files.get(a, a) for a in arguments), "--json")
        assert code == 0, (name, err)
        assert keys <= json.loads(out).keys(), name


def test_an_error_is_one_line_elsewhere(run: RunCommand, tmp_path: Path) -> None:
    code, out, err = run("bench", tmp_path / "no.onnx", tmp_path / "no.onnx", "--json")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("found", "data"),
    [
        (float("nan"), None),
        ({"a": np.float32(0.5), Path("b"): (1, True, None)}, {"a": 0.5, "b": [1, True, None]}),
        (Path("x"), "x"),
        ({2: np.int64(3)}, {"2": 3}),
    ],
)
def test_values_become_data(found: object, data: object) -> None:
    assert as_data(found) == data
