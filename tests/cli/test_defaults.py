"""Options from a file and by a word: below the command line, and wrong ones are one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from inlay.cli.commands import run as run_command
from inlay.cli.options import CONFIG, EFFORT, options_of
from inlay.prepare.options import EFFORTS
from tests.cli.test_options import example


def given(words: Sequence[str]) -> tuple[int, dict[str, object]]:
    """The exit code, and what a command gets from these words."""
    app = typer.Typer()
    seen: dict[str, object] = {}

    @app.command()
    @options_of(example, (CONFIG, EFFORT))
    def command(**values: object) -> None:
        seen.update(values)

    @app.command()
    def other() -> None: ...

    del command, other
    code = run_command(lambda: app(["command", *map(str, words)], standalone_mode=False))
    return code, seen


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("sizes: [x, y]\ncount: 7\nforget: true\n", encoding="utf8")
    return path


def test_a_file_holds_what_the_command_line_does_not_say(config: Path) -> None:
    code, values = given(["m.onnx", "--config", str(config)])
    assert (code, values["count"], list(map(str, values["sizes"])), values["keep"]) == (0, 7, ["x", "y"], False)  # type: ignore[call-overload]
    code, values = given(["m.onnx", "--config", str(config), "--count", "2", "--sizes", "z"])
    assert (code, values["count"], values["sizes"], values["keep"]) == (0, 2, ["z"], False)
    code, values = given(["m.onnx"])
    assert (code, values["count"], values["keep"]) == (0, 3, True), "without a file nothing changes"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cuont: 3", "no option cuont; did you mean count?"),
        ("config: a.yaml", "no option config"),
        ("count: [1, 2]", "count takes one value"),
        ("count: {a: 1}", "count takes one value"),
        ("count: true", "count takes a value"),
        ("forget: 1", "forget takes true or false"),
        ("count: 0", "count"),
        ("count: many", "count"),
        ("- 1", "expected options"),
        ("a: [", "not YAML"),
    ],
)
def test_what_a_file_may_not_say(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf8")
    code, values = given(["m.onnx", "--config", str(path)])
    assert (code, values) == (2, {})
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_an_effort_is_a_budget(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()
    seen: list[str] = []

    @app.command()
    def command(budget: str = "1s", effort: str | None = None, config: Path | None = None) -> None:
        seen.append(budget)

    @app.command()
    def other() -> None: ...

    command.__annotations__.update({p.name: p.annotation for p in (CONFIG, EFFORT)})
    for words, budget in [
        ([], "1s"),
        (["--effort", "thorough"], EFFORTS["thorough"]["budget"]),
        (["--effort", "thorough", "--budget", "5s"], "5s"),
    ]:
        assert CliRunner().invoke(app, ["command", *words]).exit_code == 0
        assert seen.pop() == budget
    config.write_text("effort: instant\n", encoding="utf8")
    assert CliRunner().invoke(app, ["command", "--config", str(config)]).exit_code == 0
    assert seen.pop() == EFFORTS["instant"]["budget"]
    config.write_text("budget: 9s\n", encoding="utf8")
    for words in (["--config", str(config), "--effort", "instant"], ["--effort", "instant", "--config", str(config)]):
        assert CliRunner().invoke(app, ["command", *words]).exit_code == 0
        assert seen.pop() == "9s", "the file says it by name"
    assert given(["m.onnx", "--effort", "great"])[0] == 2
    assert "instant, normal, thorough" in capsys.readouterr().err
