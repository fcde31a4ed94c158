"""Commands and links in the documentation: each names what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from benchmarks import front
from typer.main import get_command

from inlay.cli.commands import app

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "SECURITY.md"]
_COMMAND = re.compile(r"^(?:    |\$ )?(inlay [a-z].*)$", re.MULTILINE)
_FENCED = re.compile(r"^```\w*\n(.*?)^```$|((?:^    .*\n)+)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def commands_on(page: Path) -> list[str]:
    text = page.read_text(encoding="utf8").replace("\\\n", " ")
    parts = ["".join(found) for found in _FENCED.findall(text)]
    return [line for part in parts for line in _COMMAND.findall(part)]


def unknown_in(line: str) -> list[str]:
    """Options of a command line that its command does not have, or the command itself."""
    words = shlex.split(line, comments=True)[1:]
    words = words[: words.index("--")] if "--" in words else words
    command: Any = get_command(app)
    while hasattr(command, "get_command") and words:
        inner = command.get_command(None, words[0])
        if inner is None:
            return [words[0]]
        command, words = inner, words[1:]
    known = {flag for parameter in command.params for flag in parameter.opts if not getattr(parameter, "hidden", False)}
    return [w for w in words if re.fullmatch(r"--?[a-z][a-z-]*", w) and w not in {*known, "-h", "--help"}]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_has_the_options_that_are_shown(page: Path) -> None:
    found = {line: unknown_in(line) for line in commands_on(page)}
    assert {line: unknown for line, unknown in found.items() if unknown} == {}


def test_commands_are_found_and_mistakes_seen() -> None:
    assert sum(len(commands_on(page)) for page in PAGES) > 50
    assert unknown_in("inlay tune m.onnx --data x --minimum 3 -o out  # --not-this") == ["--minimum"]
    assert unknown_in("inlay record --out x -- python --verbose") == []
    assert unknown_in("inlay tuna m.onnx") == ["tuna"]
    assert unknown_in("inlay quantize m.onnx --mean 3") == ["--mean"], "an option that goes is not shown"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_somewhere(page: Path) -> None:
    links = _LINK.findall(page.read_text(encoding="utf8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf8")
    listed = set(re.findall(r"^([a-z]+)$", index, re.MULTILINE))
    assert {page.stem for page in PAGES if page.parent.name == "docs"} - {"index"} <= listed


def test_the_picture_is_of_the_committed_table() -> None:
    files = {file for file, *_ in front.rows()}
    assert {"float", "Inlay", "quantize_static", "quantize_dynamic"} <= files
    assert front.PICTURE.read_text(encoding="utf8") == front.picture(), "run: python -m benchmarks.front"


def test_the_readme_is_read_in_two_minutes() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf8").splitlines()
    assert len(lines) <= 150
    assert next(line for line in lines if line.startswith("![")).endswith("(docs/front.svg)")
