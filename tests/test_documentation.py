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
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "SECURITY", "CONTRIBUTING", "SKILL")),
]
_COMMAND = re.compile(r"^(?:    |\$ )?(inlay [a-z].*)$", re.MULTILINE)
_FENCED = re.compile(r"^```[^\n`]*\n(.*?)^```$|((?:^    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)")
_OTHER = re.compile(r"^(?:    |\$ )?((?:pip install|make|python) .*)$", re.MULTILINE)


def blocks_on(page: Path) -> list[str]:
    text = page.read_text(encoding="utf8").replace("\\\n", " ")
    return ["".join(found) for found in _FENCED.findall(text)]


def commands_on(page: Path) -> list[str]:
    return [line for block in blocks_on(page) for line in _COMMAND.findall(block)]


def refusal_of(line: str) -> str:
    """What the program itself says of a command line before it does anything; nothing if it would begin."""
    words = shlex.split(line, comments=True)[1:]
    command: Any = get_command(app)
    name = "inlay"
    while hasattr(command, "get_command") and words:
        name, *words = words
        inner = command.get_command(None, name)
        if inner is None:
            return f"No such command '{name}'."
        command = inner
    try:
        command.make_context(name, list(words))
    except Exception as error:  # typer's own class, which is elsewhere in each version
        said = error.format_message() if hasattr(error, "format_message") else str(error)
        return str(said).splitlines()[0]
    except SystemExit:  # --help and --version
        return ""
    hidden = {flag for each in command.params if getattr(each, "hidden", False) for flag in each.opts}
    return "".join(f"{word} goes" for word in words if word in hidden)


def anchors_of(page: Path) -> set[str]:
    """The anchors that headings of a page have, in the site and where the repository is shown."""
    text = _FENCED.sub("", page.read_text(encoding="utf8"))
    heads = re.findall(r"^#{1,3} (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_has_the_options_that_are_shown(page: Path) -> None:
    for line in commands_on(page):
        assert refusal_of(line) == "", line


def test_commands_are_found_and_mistakes_seen() -> None:
    assert sum(len(commands_on(page)) for page in PAGES) > 50
    assert "--minimum" in refusal_of("inlay tune m.onnx --data x --minimum 3 -o out  # --not-this")
    assert "--out" in refusal_of("inlay quantize m.onnx --data x"), "what is required is there"
    assert "integer" in refusal_of("inlay tune m.onnx --seed x -o out"), "values are read, too"
    assert refusal_of("inlay record --out x -- python --verbose") == ""
    assert "tuna" in refusal_of("inlay tuna m.onnx")
    assert refusal_of("inlay quantize m.onnx --mean 3 -o q.onnx") == "--mean goes", "an option that goes is not shown"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_other_commands_name_what_there_is(page: Path) -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf8"), re.MULTILINE))
    for line in (line for block in blocks_on(page) for line in _OTHER.findall(block)):
        program, *words = shlex.split(line, comments=True)
        if program == "make":
            assert {word for word in words if "=" not in word} <= targets, line
        elif program == "pip":
            extras = re.findall(r"inlay\[([a-z,-]+)\]", line)
            assert all(
                re.search(rf"^{extra} = \[", settings, re.MULTILINE) for e in extras for extra in e.split(",")
            ), line
        elif words[0].startswith("examples/"):
            assert (ROOT / words[0]).is_file(), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_somewhere(page: Path) -> None:
    for link, anchor in _LINK.findall(page.read_text(encoding="utf8")):
        there = page.parent / link if link else page
        assert there.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors_of(there), f"{page.name}: {link}#{anchor}"
    for named in re.findall(r"`(docs/[\w/.-]+)`", page.read_text(encoding="utf8")):
        assert (ROOT / named).exists(), f"{page.name}: {named}"


def test_anchors_are_those_of_headings() -> None:
    assert {"exit-codes"} <= anchors_of(ROOT / "docs" / "cli.md")
    assert "get-sample" not in anchors_of(ROOT / "docs" / "guide.md")
    assert sum(bool(anchor) for page in PAGES for _, anchor in _LINK.findall(page.read_text(encoding="utf8"))) >= 5


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
