"""Costs kept between runs: a file that anybody may have edited, and that several runs write."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from inlay.run.machine_costs import VERSION, CostDatabase
from inlay.targets.base import Fingerprint

TARGET = Fingerprint("null", {})


def write(folder: Path, text: str) -> CostDatabase:
    database = CostDatabase(TARGET, folder)
    database.path.write_text(text)
    return database


@pytest.mark.parametrize(
    "row",
    ["[NaN, 1]", "[Infinity, 1]", "[-Infinity, 1]", "[-1.0, 1]", f"[{'9' * 400}, 1]", "[1e300, 1]", "[1.0, -1]",
     "[1.0, 0]", "[1.0, 1.5]", f"[1.0, {'9' * 400}]", "[true, 1]", '["1", 1]', "[1.0]", "[1.0, 1, 1]", "5", "null",
     "{}", "[[], 1]"],
)  # fmt: skip
def test_a_cost_that_is_none_is_left_out(row: str, tmp_path: Path) -> None:
    database = write(tmp_path, f'{{"version": {VERSION}, "costs": {{"bad": {row}, "good": [5.0, 2]}}}}')
    assert database.read() == {"good": 5.0}
    database.add({"bad": 7.0})
    assert database.read() == {"bad": 7.0, "good": 5.0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "5",
        "{",
        f'{{"version": {VERSION}}}',
        f'{{"version": {VERSION}, "costs": 5}}',
        '{"version": [], "costs": {}}',
        "[" * 100_000,
        f'{{"version": {"9" * 5000}}}',
        '{"version": 1, "costs": {"a": [1.0, 1]}}',
    ],
)
def test_a_file_that_is_none_is_empty(text: str, tmp_path: Path) -> None:
    database = write(tmp_path, text)
    assert database.read() == {}
    database.add({"a": 1.0})
    assert CostDatabase(TARGET, tmp_path).read() == {"a": 1.0}


def _add(folder: str, number: int) -> None:
    for i in range(10):
        CostDatabase(TARGET, Path(folder)).add({f"{number} {i}": 1.0})


def test_runs_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(_add, [str(tmp_path)] * 4, range(4)))
    assert len(CostDatabase(TARGET, tmp_path).read()) == 40
    assert json.loads(CostDatabase(TARGET, tmp_path).path.read_text())["version"] == VERSION
