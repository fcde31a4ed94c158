"""Verdict, table, notes and JSON of one run agree with each other, and with what is known of the models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from benchmarks import one_story

from inlay.deadline import Deadline
from inlay.measure.paired import Series
from inlay.run.confirm.contenders import Entry
from inlay.run.confirm.delivered import Rounds
from inlay.run.confirm.undecided import (
    contradicted,
    faster_than,
    left_open,
    likely_faster,
    open_words,
    over_float,
    too_few,
)
from inlay.run.confirm.verification import Rejected
from inlay.run.evaluate import Candidate
from inlay.run.outcome.assemble import cuts
from inlay.run.result import Best
from inlay.run.schedule import Effort, Schedule
from inlay.run.session import Session
from inlay.targets.base import Artifact
from inlay.trial import Accuracy, Interval, Latency, Measured, Proposal, Trial, shown_ratio
from inlay.types import Placement, Port, QType

LOW = Placement([(Port("conv", 0), QType.UINT8)])
UNBOUNDED = Interval(6.33, 0.0, float("inf"))
SHOWN = Interval(1.9, 1.6, 2.3)


def entry(name: str, ns: list[float], speedup: Interval, placement: Placement = LOW, db: float = 30.0) -> Entry:
    file = Artifact(Path(f"{name}.onnx"), name)
    outcome = Measured(Latency(1e6, speedup, 9), Accuracy(True, db))
    trial = Trial(Proposal(placement, name, anchor=True), outcome)
    return Entry(Candidate(name, trial, lambda: file, placement), file, Series(np.array(ns)))


@pytest.mark.parametrize("seed", [28, 29])
@pytest.mark.matrix
def test_what_was_read_too_seldom_is_left_open(seed: int) -> None:
    """One model truly gains 14 % or more there, and was timed in two blocks."""
    run = one_story.simulate(seed)
    assert run["contradictions"] == []
    assert run["undecided"]


@pytest.mark.parametrize("first", range(0, 24, 8))  # some 20 intervals each
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_simulated_runs_on_a_busy_machine_do_not_contradict_themselves(first: int) -> None:
    runs = [one_story.simulate(seed) for seed in range(first, first + 8)]
    assert [(r["seed"], r["contradictions"]) for r in runs if r["contradictions"]] == []
    hits, of = (sum(r["covered"][i] for r in runs) for i in (0, 1))
    assert of
    assert hits >= 0.8 * of


def test_the_check_finds_what_was_found_from_outside() -> None:
    """Negative controls: each of these was printed once."""
    done = one_story.simulate(3)
    result, text = done["result"], done["text"]

    def found(change: Mapping[str, Any], said: str = text) -> list[str]:
        return one_story.contradictions(said, {**result, **change})

    def anchors(**change: Any) -> list[dict[str, Any]]:
        return [{**a, **change} if a["name"] == "full-int8" else a for a in result["anchors"]]

    assert found({}) == []
    assert found({"anchors": anchors(latency_ms=0.1)})
    kept = {**result["best"], "origin": "original", "speedup": 1.0, "latency_ms": result["baseline"]["latency_ms"]}
    fast = {"speedup": 2.71, "speedup_low": 2.58, "latency_ms": result["baseline"]["latency_ms"] / 2.71}
    faster = {"best": {**kept, "confirmed": True}, "anchors": anchors(**fast, feasible=True)}
    assert any("nothing is faster" in what for what in found(faster, ""))
    assert any("without an interval" in what for what in found({}, f"{text}\n  full-int8 has 6.33x"))
    unsure = {"best": {**kept, "confirmed": False}, "undecided": "1 of 24 blocks"}
    assert found(unsure, "Verdict (NOT DECIDED): x. float is best")
    assert one_story.refuted({**result, **faster}, {"full-int8": {"low": 2.4, "high": 2.6}})


def test_readings_that_leave_a_gain_open_do_not_exclude_it() -> None:
    rng = np.random.default_rng(0)
    base = entry("original", list(1e6 * np.exp(rng.normal(0.0, 0.3, 12))), Interval(1.0, 1.0, 1.0), Placement())
    wide = entry("full-int8", list(1e6 * np.exp(rng.normal(0.0, 0.3, 12))), Interval(2.71, 2.58, 5.32))
    in_float = entry("float", list(wide.readings.ns), Interval(1.0, 0.9, 1.1), Placement())
    assert set(left_open(base, [wide, in_float])) == {"full-int8"}
    same, slower = (replace(e, readings=Series(np.full(12, ns))) for e, ns in ((base, 1e6), (wide, 1.01e6)))
    assert left_open(same, [slower]) == {}, "that is excluded"
    once, exact = (replace(base, readings=Series(np.ones(1), exact=exact)) for exact in (False, True))
    assert set(left_open(once, [replace(wide, readings=Series(np.ones(1)))])) == {"full-int8"}
    assert left_open(exact, [replace(wide, readings=exact.readings)]) == {}
    assert too_few(once)
    assert not too_few(exact)
    assert not too_few(base)


def test_what_two_sorts_of_readings_say_is_likely() -> None:
    """MiniLM beside other work: 1.9x in the search and in 14 deciding blocks, which left it open: float was kept."""
    rng = np.random.default_rng(0)
    base = entry("original", list(1e6 * np.exp(rng.normal(0.0, 0.9, 12))), Interval(1.0, 1.0, 1.0), Placement())
    half = list(0.5e6 * np.exp(rng.normal(0.0, 0.9, 12)))
    fast, lucky = (entry(name, half, found) for name, found in (("a", SHOWN), ("b", Interval(1.9, 1.02, 3.0))))
    same = entry("c", list(base.readings.ns), SHOWN)
    assert set(left_open(base, [fast])) == {"a"}
    assert likely_faster(base, [fast, lucky, same], base) == [fast], "one shows it nowhere, one was fast by luck"
    in_float = entry("float", list(0.48e6 * base.readings.ns / 1e6), Interval(2.0, 1.9, 2.1), Placement())
    assert likely_faster(base, [in_float, fast], base) == [], "float is as fast"
    slow_float = entry("float", list(0.95 * base.readings.ns), Interval(1.05, 1.04, 1.06), Placement())
    assert likely_faster(base, [slow_float, fast], slow_float) == [fast]
    assert likely_faster(base, [fast, same], same) == [], "what is shown is in low precision"
    exact = replace(base, readings=replace(base.readings, exact=True))
    assert likely_faster(exact, [fast], exact) == []


def test_a_fast_model_of_the_search_is_open_unless_something_speaks_against_it() -> None:
    base = entry("original", [1e6], Interval(1.0, 1.0, 1.0), Placement()).candidate
    fast = entry("full-int8", [1e6], Interval(2.71, 2.58, 5.32)).candidate
    hardly = entry("cut 1", [1e6], Interval(1.05, 1.02, 1.08)).candidate
    judged, nothing = [base, fast, hardly], (frozenset[str](), (), 20.0, None)
    assert set(contradicted(judged, {}, *nothing)) == {"full-int8"}
    assert contradicted(judged, {"full-int8": Interval(0.98, 0.97, 0.99)}, *nothing) == {}, "fresh processes say more"
    assert contradicted(judged, {}, {"full-int8"}, (), 20.0, None) == {}
    assert contradicted(judged, {}, (), (Rejected(fast, Accuracy(False, 17.0)),), 20.0, None) == {}
    other = Rejected(hardly, Accuracy(False, 15.0))
    assert contradicted(judged, {}, (), (other,), 20.0, None) == {}, "it is no more accurate than what failed"


def test_a_float_model_that_was_not_confirmed_is_compared_by_the_search() -> None:
    """Else the delivered model would be as much faster than float as than the given one, beside a faster float."""
    base = replace(entry("original", [1e6], Interval(1.0, 1.0, 1.0), Placement()).candidate, source=Path("m.onnx"))
    floats = entry("float", [1e6], Interval(1.25, 1.2, 1.3), Placement()).candidate
    found = over_float(Interval(2.5, 2.4, 2.6), [base, floats])
    assert found.value == pytest.approx(2.0)
    assert (found.low, found.high) == pytest.approx((2.4 / 1.3, 2.6 / 1.2))
    assert over_float(Interval(1.0, 1.0, 1.0), [base, floats]).value == 1.0


def test_what_is_gained_over_a_float_model_that_was_hardly_read_is_left_open() -> None:
    """An old export, with its weights as inputs, was 6.6 times as fast once normalized: 11.02x were told of INT8."""
    base = replace(entry("original", [1e6], Interval(1.0, 1.0, 1.0), Placement()).candidate, source=Path("m.onnx"))
    found = Interval(11.02, 10.84, 11.27)
    hardly = entry("float", [1e6], UNBOUNDED, Placement()).candidate
    for judged in ([base], [base, hardly]):
        told = over_float(found, judged)
        assert shown_ratio(told) == "too few readings"
        best = Best("cut 1", "", 1.6, found, told, Accuracy(True, 22.8), None, 62, False, "", 0)
        assert best.as_json()["speedup_over_normalized_float"] is None


def test_blocks_that_were_planned_and_not_read_are_not_told_as_read() -> None:
    """ "0 of 24 deciding blocks" left something open, while the next note told of "10 of 24 deciding blocks"."""
    full, cut = Effort(8, 3, 3, 8), Effort(2, 0, 1, 10)
    plan = SimpleNamespace(is_limited=True, efforts=(full, cut))
    parts, config = SimpleNamespace(calibration=()), SimpleNamespace(protocol=SimpleNamespace(first_blocks=7))
    inputs = SimpleNamespace(parts=parts, config=config)
    session = cast(Session, SimpleNamespace(plan=plan, inputs=inputs, journal=SimpleNamespace(fact=lambda _: None)))
    read = Rounds(effort=cut, finalists={"a": Artifact(Path("a.onnx"), "a")})
    assert "10 of 24 deciding blocks" in "".join(cuts(session, (), 7, read))
    assert [*cuts(session, (), 7, replace(read, finalists={}))] == []


def test_what_it_takes_to_decide_is_told() -> None:
    plan, effort, full = (
        Schedule(begun=0.0, deadline=Deadline(40.0, lambda: 0.0)),
        Effort(2, 0, 1, 1),
        Effort(8, 3, 3, 8),
    )
    said = open_words({"full-int8": Interval(2.71, 2.58, 5.32), "dynamic": UNBOUNDED}, plan, effort, full, 1, 0.1)
    assert said.startswith(
        "1 of 24 deciding blocks leave open whether dynamic, full-int8 (at least 2.58x) are faster: "
    )
    assert "give --budget " in said
    assert int(said.split("--budget ")[1].split("s")[0]) > 40
    whole = open_words({"dynamic": Interval(1.1, 0.9, 1.3)}, plan, full, full, 24, 0.1)
    assert "96 blocks" in whole
    later = open_words({"dynamic": Interval(1.1, 0.9, 1.3)}, plan, full, full, 32, 0.1)
    assert later.startswith("32 deciding blocks leave open"), "not 32 of 24: a later look added eight"


def test_no_number_is_shown_without_an_interval() -> None:
    assert shown_ratio(UNBOUNDED) == "too few readings"
    assert shown_ratio(Interval(2.0, 1.9, 2.1)) == "2.00x [1.90, 2.10]"
    assert shown_ratio(Interval(2.0, 2.0, 2.0)) == "2.00x"


def test_only_what_may_be_faster_than_what_is_delivered_is_left_open() -> None:
    """Float that rewrites made 1.63 times as fast leaves a model at 1.32x no more open than one at 0.8x."""
    found = {
        "slow": Interval(1.32, 1.30, 1.33),
        "wide": Interval(1.5, 1.0, 2.2),
        "untold": Interval(1.0, 0.0, math.inf),
    }
    assert set(faster_than(found, Interval(1.63, 1.59, 1.66))) == {"wide", "untold"}
    assert faster_than(found, Interval(1.0, 1.0, 1.0)) == found
