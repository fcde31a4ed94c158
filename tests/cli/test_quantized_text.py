"""What `inlay quantize` says of a file that it left in float, and of a model that came quantized."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inlay.cli.quantized import quantized
from inlay.quant.plain.graph import Leftover
from inlay.run.instant.by_costs import ByCosts, _gains, _why_not
from inlay.run.instant.quantize import Quantized
from inlay.trial import Accuracy, Interval

EXACT = Accuracy(feasible=True, sqnr_db=300.0, samples=12)
FLOAT = Quantized(
    path=Path("q.onnx"),
    sha256="0" * 64,
    ports=0,
    units=(0, 9),
    ranges="",
    accuracy=EXACT,
    refusals={},
    by_costs=ByCosts("a table", speedup=1.0, models=1),
    samples=24,
)


def text(done: Quantized) -> str:
    return "\n".join(quantized(done))


def test_a_float_model_has_no_ranges_and_what_was_not_timed_is_not_called_the_fastest() -> None:
    said = text(FLOAT)
    assert "ranges came" not in said
    assert "given samples together: exact." in said
    assert "nothing was timed" in said
    assert "1 model was built" in said
    assert FLOAT.by_costs is not None
    low, high = Interval(0.9, 0.8, 0.95), Interval(1.4, 1.3, 1.5)
    how = replace(FLOAT.by_costs, models=3, in_float=high, rejected=low)
    tried = text(replace(FLOAT, by_costs=how))
    assert "1.40x [1.30, 1.50] over the given model in float, 0.90x [0.80, 0.95] in low precision at best" in tried
    assert "nothing was timed" not in tried
    assert "was chosen" not in tried
    because = text(replace(FLOAT, by_costs=replace(how, why_float="low precision is 0.64x over float")))
    assert "Float was chosen: low precision is 0.64x over float." in because
    kept = text(replace(FLOAT, by_costs=replace(how, why_float="of this", unchanged=True)))
    assert "The given model was chosen: of this." in kept
    unchanged = text(replace(FLOAT, by_costs=replace(how, in_float=low, unchanged=True)))
    assert unchanged.startswith("Wrote q.onnx: the given model.")
    assert "0.90x [0.80, 0.95] over the given model in float" in unchanged
    missed = text(replace(FLOAT, by_costs=replace(how, unchanged=True, kept=False, bound_db=20.0, rejected=None)))
    assert "THIS IS THE GIVEN MODEL: no placement kept 20.0 dB" in missed


@pytest.mark.parametrize(
    ("ratio", "gains", "said"),
    [
        (Interval(0.9, 0.8, 0.95), False, "low precision is 0.90x [0.80, 0.95] over float in the same blocks"),
        (Interval(1.05, 0.98, 1.2), False, "a gain below 1.1x must be shown by its interval"),
        (Interval(1.32, 0.0, float("inf")), True, "too few readings to say whether low precision is faster than float"),
        (Interval(1.05, 1.02, 1.2), True, ""),
        (Interval(1.32, 0.9, 1.6), True, ""),
    ],
)
def test_the_reason_for_float_is_the_one_that_decided(ratio: Interval, gains: bool, said: str) -> None:
    assert _gains(ratio) == gains
    if said:
        assert said in _why_not(ratio, "float")


def test_a_model_of_which_nothing_can_be_quantized() -> None:
    said = text(replace(FLOAT, quantizable=False))
    assert "runs none of its operators in 8 bits" in said
    assert "fastest" not in said
    assert FLOAT.by_costs is not None
    timed = replace(FLOAT.by_costs, in_float=Interval(1.3, 1.2, 1.4))
    said = text(replace(FLOAT, quantizable=False, by_costs=timed))
    assert "Timed briefly: 1.30x [1.20, 1.40] over the given model in float." in said, "nothing is left to search"
    assert "inlay tune searches further" in text(replace(FLOAT, by_costs=timed))


@pytest.mark.parametrize(("precision", "db"), [("", 8.0), ("in bfloat16", 8.0), ("in bfloat16", 25.0)])
def test_a_target_that_is_outside_the_bound_by_itself_is_named(precision: str, db: float) -> None:
    accuracy = Accuracy(feasible=True, sqnr_db=db, samples=12)
    said = text(replace(FLOAT, accuracy=accuracy, own_precision=precision))
    warned = (
        "WARNING: this is below 20 dB even with nothing in 8 bits: the target computes float32 operators in bfloat16."
    )
    assert (warned in said) == (bool(precision) and db < FLOAT.asked_db)


@pytest.mark.parametrize("given_quantized", [False, True])
def test_the_figure_says_what_it_is_against(given_quantized: bool) -> None:
    accuracy = Accuracy(feasible=True, sqnr_db=32.7, samples=12)
    done = replace(FLOAT, ports=3, ranges="minmax", accuracy=accuracy, given_quantized=given_quantized)
    said = text(done)
    assert ("against the given model, with its own quantization: 32.7 dB" in said) == given_quantized
    assert "ranges came from them" in said
    assert "ranges" not in text(replace(done, ranges="")), "of what is quantized at run time alone"


def test_what_was_not_taken_apart_is_one_line_a_reason() -> None:
    left = (*(Leftover(f"conv {i}", "no scale") for i in range(30)), Leftover("last", "another"))
    said = text(replace(FLOAT, leftovers=left))
    assert said.count("not taken apart") == 2
    assert "conv 0 and 29 more: no scale" in said
    assert "last: another" in said
