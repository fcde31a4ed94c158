"""A faulty runtime never stops a run, and never makes it tell anything that is not true.

``python -m tests.attack faults`` tries every fault at every place, also those that end processes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from inlay.testing.faulty import FAULTS
from tests.support.faulty_runs import attempt, installed

CASES = [
    ("zero times", "search"),
    ("NaN times", "confirmation"),
    ("zero times, now and then", "search"),
    ("negative times", "baseline"),
    ("raise in compile", "confirmation"),
    ("raise in close", "search"),
    ("outputs of another shape", "confirmation"),
    ("raise in time", "baseline, always"),
]
"""Some that leave the process alive."""


@pytest.mark.parametrize(("fault", "place"), CASES)
@pytest.mark.matrix
def test_a_run_ends_with_a_model_whose_figure_is_true(fault: str, place: str, tmp_path: Path) -> None:
    found = attempt(fault, place, tmp_path / "run", is_simulated=True)
    if place == "baseline, always":
        assert found.claimed is None
        assert "model.onnx does not run on" in found.message, "one line, which names the model that does not run"
        return
    assert found.is_true, found


@pytest.mark.exhaustive
def test_without_a_fault_that_strikes_the_same_run_finds_something(tmp_path: Path) -> None:
    """Otherwise all of the above could be true of float."""
    found = attempt("zero times", "nowhere", tmp_path / "run", is_simulated=True)
    assert found.is_true
    assert found.claimed is not None
    assert found.claimed[1] > 1.1
    assert found.confirmed


@pytest.mark.exhaustive
def test_what_was_proven_in_the_search_is_delivered_where_nothing_can_be_confirmed(tmp_path: Path) -> None:
    found = attempt("raise in start", "confirmation", tmp_path / "run", is_simulated=True)
    assert found.is_true
    assert found.claimed is not None
    assert found.claimed[1] > 1.1
    assert not found.confirmed
    assert found.message.startswith("NOT CONFIRMED: ")


@pytest.mark.exhaustive
def test_a_process_that_dies_costs_one_contender(tmp_path: Path) -> None:
    with installed(tmp_path / "site"):
        found = attempt("abort in time", "confirmation", tmp_path / "run", budget_s=None)
    assert found.is_true
    assert found.confirmed
    assert "was given up: the runtime's process died in time (signal SIGABRT)" in found.message


@pytest.mark.parametrize(("fault", "place"), [("hang in start", "search"), ("hang in run", "confirmation")])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_runtime_that_hangs_takes_a_part_of_the_budget_and_no_more(fault: str, place: str, tmp_path: Path) -> None:
    """A share of the usual limit of a message, which is ten minutes; the budget leaves room for a busy machine."""
    with installed(tmp_path / "site"):
        found = attempt(fault, place, tmp_path / "run", budget_s=30.0)
    assert found.is_true
    assert found.seconds < 75.0


def test_every_kind_of_fault_can_be_had() -> None:
    for word in ("abort", "exit", "hang", "leak", "NaN", "zero", "negative", "infinite", "shape", "objects", "garbage"):
        assert any(word in name for name in FAULTS), word
    assert len(FAULTS) >= 32
