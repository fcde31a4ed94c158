"""Cost tables of processors: kept by fingerprint, and left alone where they are damaged or another processor's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inlay.run.machine_costs import path_of, read_costs, write_costs
from inlay.search.cost_table import CostTable, Fit
from inlay.targets.base import Fingerprint
from inlay.targets.null import NullTarget

TABLE = CostTable({("Conv", "float"): Fit((1.0, 2.0, 3.0, 4.0), 0.1, 5)})
HERE = Fingerprint("null", {"cpu": "this one"})


def test_a_table_is_found_again(tmp_path: Path) -> None:
    write_costs(HERE, TABLE, tmp_path)
    found = read_costs(NullTarget(), HERE, tmp_path)
    assert (found.table, found.own, found.warning) == (TABLE, True, "")


def test_another_processor_has_no_table(tmp_path: Path) -> None:
    write_costs(HERE, TABLE, tmp_path)
    found = read_costs(NullTarget(), replace(HERE, facts={"cpu": "another"}), tmp_path)
    assert found.table is None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "not JSON"),
        (lambda text: "[" * 100_000, "not JSON|recursion"),
        (lambda text: "[]", "version"),
        (lambda text: json.dumps({**json.loads(text), "version": 99}), "version"),
        (lambda text: json.dumps({**json.loads(text), "facts": {"cpu": "another"}}), "another processor"),
        (lambda text: json.dumps({**json.loads(text), "facts": 3}), "measured on"),
        (lambda text: json.dumps({**json.loads(text), "fits": [["Conv", "float", [0, 0, 0, -1], 0, 1]]}), "numbers"),
    ],
)
def test_a_damaged_or_foreign_file_is_left_alone_with_a_warning(
    tmp_path: Path, damage: Callable[[str], str], said: str
) -> None:
    path = write_costs(HERE, TABLE, tmp_path)
    path.write_text(damage(path.read_text(encoding="utf8")), encoding="utf8")
    found = read_costs(NullTarget(), HERE, tmp_path)
    assert found.table is None
    assert "\n" not in found.warning
    assert re.search(said, found.warning), found.warning


def test_a_copied_file_says_whose_it_is(tmp_path: Path) -> None:
    """Under the name of this processor's, but measured elsewhere."""
    there = replace(HERE, facts={"cpu": "there"})
    path = path_of(HERE, tmp_path)
    write_costs(there, TABLE, tmp_path).replace(path)
    assert "another processor" in read_costs(NullTarget(), HERE, tmp_path).warning
