"""The page of promises names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf8")


def missing(page: str) -> list[str]:
    """Tests that ``page`` names as ``path::name`` and that do not exist."""
    found = []
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page):
        file = REPOSITORY / path
        tree = ast.parse(file.read_text(encoding="utf8")) if file.is_file() else ast.Module([], [])
        if not any(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree)):
            found.append(f"{path}::{name}")
    return found


def test_every_promise_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| .*\|$", line) and not line.startswith("| promise")]
    assert len(rows) > 20
    assert [row for row in rows if "::" not in row] == []
    assert missing(PAGE) == []


def test_tests_that_do_not_exist_are_reported() -> None:
    page = "`tests/test_reliability.py::test_gone` `tests/gone.py::test_a` `tests/test_reliability.py::missing`"
    assert missing(page) == ["tests/test_reliability.py::test_gone", "tests/gone.py::test_a"]
