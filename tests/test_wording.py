"""What is said of counts, and of figures over several samples beside figures of single ones."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from benchmarks.one_story import contradictions
from hypothesis import given
from hypothesis import strategies as st

from inlay.cli.render import _accuracy, quantizable
from inlay.patterns.cache import PatternCache, show
from inlay.quant.tolerance import state
from inlay.run.inspection import Quantizable
from inlay.trial import Accuracy, Interval, counted, plain, shown_latency, shown_ratio, shown_seconds, together

SOURCE = Path(__file__).parents[1] / "src" / "inlay"


def test_one_is_one_and_all_others_are_many() -> None:
    assert counted(1, "sample") == "1 sample"
    assert [counted(n, "sample") for n in (0, 2)] == ["0 samples", "2 samples"]
    assert counted(2, "fresh process", "fresh processes") == "2 fresh processes"


def test_tables_of_one_are_singular() -> None:
    for count, said in ((1, "1 of 1 operator can run"), (2, "2 of 2 operators can run")):
        assert next(iter(quantizable(Quantizable({"Conv": (count, count)}, {}, {})))).startswith(said)
    assert show(PatternCache())[0] == "0 patterns, 0 schemes"


def test_a_figure_over_all_samples_does_not_read_as_one_of_each() -> None:
    """24.9 dB over all beside 12 dB of a single one is no contradiction, where both say what they are of."""
    pooled = _accuracy(Accuracy(True, 24.9, samples=8), True)
    assert pooled == "SQNR 24.9 dB over 8 unseen samples together"
    assert "together" not in _accuracy(Accuracy(True, 24.9, samples=1), True)
    for each_db in ([12.0, *[25.0] * 7], [12.0, *[25.0] * 60]):
        said = str(state(each_db, 20.0))
        assert "dB each" in said
        assert "one by one" in said
    assert together(3) == "over 3 samples together"


def test_an_interval_that_says_little_is_told_as_its_lower_bound() -> None:
    wide, narrow = Interval(1.99, 1.81, 11.64), Interval(1.99, 1.81, 2.2)
    assert shown_ratio(wide) == "at least 1.81x (readings too few for more)"
    assert shown_ratio(narrow) == "1.99x [1.81, 2.20]"
    assert shown_latency(10.0 / 1.99, wide) == f"at most {10.0 / 1.81:.3f} ms", "the two follow from each other"
    assert shown_latency(5.0, narrow) == "5.000 ms"
    assert shown_ratio(Interval(2.0, 0.0, math.inf)) == "too few readings"
    assert shown_latency(5.0, Interval(2.0, 0.0, math.inf)) == "5.000 ms"


def test_a_text_with_a_wide_interval_agrees_with_what_is_written() -> None:
    """And one whose lower bound is another does not: the control."""
    low = {"speedup": 2.0, "speedup_low": 1.81, "speedup_high": 11.64, "latency_ms": 5.0, "feasible": True}
    best = {**low, "origin": "cut", "confirmed": True}
    kept = {"best": best, "baseline": {"latency_ms": 10.0}, "anchors": [{**low, "name": "full-int8"}]}
    result = {**kept, "pareto": [], "undecided": None, "not_timed": [], "notes": []}
    gain, ms = shown_ratio(Interval(2.0, 1.81, 11.64)), shown_latency(5.0, Interval(2.0, 1.81, 11.64))
    text = f"  full-int8  {ms}  {gain}  30.0 dB\nVerdict: {gain} over the given model (10.000 ms -> {ms}): cut."
    assert contradictions(text, result) == []
    assert len(contradictions(text.replace("1.81x", "1.71x"), result)) >= 2


@given(st.floats(1e-6, 1e9, exclude_max=True), st.integers(1, 6))
def test_numbers_and_durations_for_people_have_no_exponents(value: float, digits: int) -> None:
    for number in (value, -value):
        text = plain(number, digits)
        assert "e" not in text
        assert float(text) == float(f"{number:.{digits}g}")
    shown, unit = shown_seconds(value, digits).split()
    assert "e" not in shown
    seconds = float(shown) * {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    assert seconds == pytest.approx(value, rel=0.5 * 10.0 ** (1 - digits) * 1.001)
    assert unit == "s" or float(shown) < 1000.0, "in the unit that fits"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1.33, "1.33 s"), (1330.0, "1330 s"), (0.08, "80 ms"), (1.2e-5, "12 us"), (6.87e-8, "68.7 ns"), (0.0, "0 s")],
)
def test_durations_are_in_the_unit_that_fits(seconds: float, said: str) -> None:
    assert shown_seconds(seconds) == said


_MAY_HAVE_EXPONENTS = {"trial.py", "search/cost_table.py", "targets/onnxruntime/preconditions.py"}
"""Where the helper is, where numbers go into a file, and where they are scales."""


def test_no_text_rounds_numbers_in_a_way_that_writes_exponents() -> None:
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r":\.\dg\}", path.read_text(encoding="utf8"))
    }
    assert found <= _MAY_HAVE_EXPONENTS
    assert found, "the pattern finds what it is to find"
