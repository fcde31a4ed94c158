"""Which models are confirmed, and in which order."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inlay.measure.paired import Series, speedup
from inlay.run.confirm.contenders import (
    LOOK_LEVEL,
    TIE,
    Entry,
    champion_of,
    contenders_of,
    fastest_of,
    gain,
    is_open,
    most_promising,
    open_cases,
    shows_its_fastest,
)
from inlay.run.evaluate import Candidate
from inlay.run.schedule import MOST_CONTENDERS
from inlay.targets.base import Artifact
from inlay.trial import Accuracy, Interval, Latency, Measured, Proposal, Trial
from inlay.types import Placement, Port, QType

FILE = Artifact(Path("model.onnx"), "digest")


def candidate(key: str, speedup: float, sqnr_db: float, feasible: bool = True) -> Candidate:
    latency = Latency(1e6 / speedup, Interval(speedup, speedup, speedup), 9)
    placement = Placement([(Port(key, 0), QType.UINT8)])
    trial = Trial(Proposal(placement, key), Measured(latency, Accuracy(feasible, sqnr_db)))
    return Candidate(key, trial, lambda: FILE, placement)


def order(*found: tuple[Candidate, float], tie: float = TIE) -> list[str]:
    entries = [Entry(c, FILE) for c, _ in found]
    return [e.candidate.key for e in most_promising(entries, {c.key: promise for c, promise in found}, tie)]


def test_of_equally_fast_models_the_most_accurate_comes_first() -> None:
    loud, quiet, slow = candidate("loud", 1.3, 21.0), candidate("quiet", 1.3, 30.0), candidate("slow", 1.2, 50.0)
    assert order((loud, 0.3), (quiet, 0.3 - TIE / 2), (slow, 0.2)) == ["quiet", "loud", "slow"]
    assert order((loud, 0.3), (quiet, 0.3 - 2 * TIE), (slow, 0.2)) == ["loud", "quiet", "slow"]  # that would be felt
    assert order((loud, 0.3), (quiet, 0.3 - TIE / 2), tie=0.0) == ["loud", "quiet"]  # readings without noise
    assert order((loud, 0.3), (quiet, 0.3), tie=0.0) == ["quiet", "loud"]
    assert order((slow, 0.2)) == ["slow"]
    assert order() == []


def test_where_contenders_fail_other_anchors_and_more_accurate_candidates_take_their_place() -> None:
    given, fast, middle = candidate("given", 1.0, 300.0), candidate("fast", 2.0, 21.0), candidate("middle", 1.5, 30.0)
    quiet, slow, outside = candidate("quiet", 1.2, 50.0), candidate("slow", 0.9, 60.0), candidate("o", 3.0, 9.0, False)
    other = candidate("other", 1.4, 25.0)
    anchor = replace(other, trial=replace(other.trial, proposal=replace(other.trial.proposal, anchor=True)))
    judged = [given, fast, middle, other, quiet, slow, outside]

    def keys(judged: list[Candidate], least_db: float, *failed: str) -> str | None:
        found = fastest_of(judged, least_db, failed)
        return None if found is None else found.key

    assert keys(judged, 28.0, "fast") == "middle"
    assert keys(judged, 28.0, "fast", "middle") == "quiet"
    assert keys(judged, 55.0, "fast") is None, "slow is no gain"
    judged[3] = anchor
    assert keys(judged, 28.0, "fast", "middle") == "other", "an anchor quantizes in another way than what failed"
    assert keys(judged, math.inf, "fast", "middle", "other") is None


@pytest.mark.parametrize(("kept", "found"), [(None, "quiet"), (False, "quiet"), (True, "other")])
def test_where_an_evaluation_decides_an_anchor_needs_as_much_as_others_or_its_word(
    kept: bool | None, found: str
) -> None:
    given, quiet, other = candidate("given", 1.0, 300.0), candidate("quiet", 1.2, 50.0), candidate("other", 1.4, 25.0)
    anchor = replace(other, trial=replace(other.trial, proposal=replace(other.trial.proposal, anchor=True)))
    chosen = fastest_of([given, anchor, quiet], 28.0, (), lambda c: kept if c is anchor else None)
    assert chosen is not None
    assert chosen.key == found


def test_a_gain_over_float_is_shown_and_the_estimate_decides_between_two_that_have_one() -> None:
    def entry(key: str, ms: float, anchor: bool = False) -> Entry:
        found = candidate(key, 1.0, 30.0)
        trial = replace(found.trial, proposal=replace(found.trial.proposal, anchor=anchor))
        sign = -1.0 if anchor else 1.0  # readings of both kinds swing against each other, evenly
        return Entry(replace(found, trial=trial), FILE, Series(ms * np.exp(0.05 * sign * np.tile([1.0, -1.0], 8))))

    base, mixed = entry("base", 10.0), entry("mixed", 8.0)
    faster, slower = entry("faster", 7.9, anchor=True), entry("slower", 8.1, anchor=True)
    assert not gain(mixed, faster).shows_gain(), "the control: it is not shown"
    assert champion_of(base, [mixed, faster]) is faster
    assert champion_of(base, [mixed, slower]) is mixed
    assert champion_of(base, [entry("unsure", 9.95, anchor=True)]) is base
    assert champion_of(base, []) is base


def test_the_most_accurate_of_the_fastest_is_a_contender() -> None:
    given, incumbent = candidate("given", 1.0, 300.0), candidate("f0", 1.5, 21.0)
    fast = [candidate(f"f{i}", 1.5 - 0.0005 * i, 21.0) for i in range(1, 7)]
    quiet, slow = candidate("quiet", 1.496, 33.0), candidate("slow", 1.4, 60.0)
    outside = candidate("outside", 1.6, 10.0, feasible=False)
    judged = [given, incumbent, *fast, quiet, slow, outside]
    keys = [c.key for c in contenders_of(judged, incumbent, None)]
    assert "quiet" in keys
    assert not {"slow", "outside", "given"} & set(keys)
    assert len(keys) <= MOST_CONTENDERS
    assert [c.key for c in contenders_of(judged, incumbent, 30.0)] == ["quiet", "slow"]
    more = [c.key for c in contenders_of(judged, incumbent, None, most=8)]
    assert sorted(more) == [*(f"f{i}" for i in range(6)), "quiet"], "two places are kept for float and an anchor"
    assert contenders_of([given], given, None) == []


def test_the_fastest_whose_bound_samples_show_is_a_contender_and_ends_a_search_only_near_the_fastest() -> None:
    def told(found: Candidate, short_db: float | None) -> Candidate:
        assert isinstance(found.trial.outcome, Measured)
        accuracy = replace(found.trial.outcome.accuracy, short_db=short_db)
        return replace(found, trial=replace(found.trial, outcome=replace(found.trial.outcome, accuracy=accuracy)))

    given = candidate("given", 1.0, 300.0)
    fast = [told(candidate(f"f{i}", 1.5 - 0.01 * i, 21.0), (None, 2.0)[i % 2]) for i in range(8)]
    shown = [told(candidate("shown", 1.3, 24.0), 0.0), told(candidate("slower", 1.2, 30.0), 0.0)]
    judged = [given, *fast, *shown]
    with_it, without = ({c.key for c in contenders_of([given, *each], fast[0], None, 5)} for each in (judged[1:], fast))
    assert with_it - without == {"shown"}
    assert not shows_its_fastest(judged), "what is shown is much slower"
    assert shows_its_fastest([given, fast[0], told(fast[1], 0.0)]), "the second is as good as the fastest"
    assert shows_its_fastest([given]), "nothing gained"


@pytest.mark.parametrize(("float_gain", "two"), [(1.01, ["rows", "conv"]), (3.0, ["float", "conv"])])
def test_where_there_is_room_for_two_float_gives_way_to_what_is_faster(float_gain: float, two: list[str]) -> None:
    """A slow model's races prove nothing: the given model is still the incumbent, and the fastest was left out."""
    given, in_float = candidate("given", 1.0, 300.0), candidate("float", float_gain, 300.0)
    in_float = replace(in_float, placement=Placement())
    conv, rows = candidate("conv", 2.1, 28.0), candidate("rows", 2.9, 28.0)
    proposal = replace(conv.trial.proposal, anchor=True)
    conv = replace(conv, trial=replace(conv.trial, proposal=proposal))
    judged = [given, in_float, conv, rows]
    assert [c.key for c in contenders_of(judged, given, None, most=2)] == two
    assert {c.key for c in contenders_of(judged, given, None)} == {"rows", "conv", "float"}


def test_float_that_runs_as_the_given_model_does_is_no_contender() -> None:
    """The runtime made one graph of both: there is nothing to tell apart, however long one looks."""
    given = candidate("given", 1.0, 300.0)

    def normalized(equal_to: str) -> Candidate:
        found = Measured(Latency(1e6, Interval(1.0, 1.0, 1.0), 9), Accuracy(True, 300.0), equal_to)
        return Candidate("float", Trial(Proposal(Placement(), "float"), found), lambda: FILE, Placement())

    assert [c.key for c in contenders_of([given, normalized("")], given, None)] == ["float"]
    assert contenders_of([given, normalized("given")], given, None) == []


def test_an_open_case_that_cannot_win_needs_no_second_look() -> None:
    noise = np.resize([0.02, -0.02], 24)
    given = Series(np.full(24, 1e6))
    alike, faster, slower = (Series(1e6 * np.exp(noise - gain)) for gain in (0.004, 0.5, -0.5))
    assert is_open(given, alike)
    assert open_cases(given, [alike]) == [0]
    assert open_cases(given, [slower, alike]) == [1]  # what is slower decides nothing
    assert open_cases(given, [alike, replace(alike)]) == [0, 1]  # either may be the winner
    assert open_cases(given, [alike, faster]) == []
    assert open_cases(given, []) == []


def test_what_others_may_have_taken_leaves_open_what_it_leaves_undecided() -> None:
    """The interval that decides says whether a second look is needed."""
    given, own = Series(np.full(24, 1e6)), 1e6 * np.exp(np.resize([0.002, -0.002], 24) - 0.01)
    assert open_cases(given, [Series(own)]) == [], "the control: on a quiet machine it is clear"
    taken = np.resize([0.05, 0.05, 0.0], 24)
    busy = Series(own / (1.0 - taken), taken)
    shown = speedup(given, busy, LOOK_LEVEL)
    assert shown.low <= 1.0 < shown.value
    assert open_cases(given, [busy]) == [0]
