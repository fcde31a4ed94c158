"""What is promised is what is stated: which model is preferred, what is said first, and how a program can tell."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

import inlay
from inlay.cli import commands, render
from inlay.deadline import Deadline
from inlay.errors import UNPROVEN
from inlay.measure.client import Worker
from inlay.quant.accuracy import Bound, margin_db
from inlay.quant.metric_limits import MetricStatement, Pairs, state_metric
from inlay.quant.tolerance import state
from inlay.report.page import accuracy_words
from inlay.report.page import verdict as page_verdict
from inlay.run.confirm.contenders import Entry
from inlay.run.confirm.delivered import Confirmed, Rounds
from inlay.run.confirm.evidence import Evidence, most_credible
from inlay.run.confirm.verification import OnOthers, Verifier
from inlay.run.evaluate import Candidate
from inlay.run.evaluation.judging import ScoreFound, Verdict
from inlay.run.result import Best
from inlay.run.schedule import Effort
from inlay.testing import Builder
from inlay.trial import Interval
from inlay.types import Placement

pytestmark = pytest.mark.usefixtures("null_in_process")

BOUND = Bound(min_sqnr_db=20.0)


def judged(*each_db: float, bound: Bound = BOUND, **more: Any) -> Evidence:
    return Evidence(bound, state(each_db, bound.min_sqnr_db), **more)


def of_metric(most_drop: float | None, needed: int | None = 700) -> MetricStatement:
    return MetricStatement(
        name="top1",
        value=0.99,
        drop=0.0,
        most_drop=most_drop,
        confidence=0.95,
        samples=50,
        method="exact",
        hits=None,
        needed=needed,
        max_drop=0.01,
        why="",
    )


def test_the_bound_is_shown_where_every_part_of_it_is_stated() -> None:
    assert judged(*np.linspace(40.0, 44.0, 8)).shows
    assert not judged(*np.linspace(21.0, 22.0, 3)).shows, "all of them keep it, and that is too little"
    by_metric = Bound(metric="top1", max_drop=0.01)
    assert Evidence(by_metric, state([]), of_metric(0.008)).shows
    assert not Evidence(by_metric, state([50.0] * 8), of_metric(0.03)).shows
    assert not Evidence(by_metric, state([50.0] * 8), None).shows, "nothing is known of it"
    both = replace(by_metric, min_sqnr_db=20.0)
    assert Evidence(both, state([50.0] * 8, 20.0), of_metric(0.008)).shows
    assert not Evidence(both, state([21.0] * 3, 20.0), of_metric(0.008)).shows
    assert Evidence(Bound(), state([])).shows, "nothing was asked for"


def test_of_few_samples_variations_count_as_further_ones() -> None:
    few, more = [40.0, 41.0, 42.0, 43.0], [40.0, 41.0, 42.0, 43.0] * 2
    assert judged(*few).shows
    assert not judged(*few, varied_lacks_db=1.5).shows
    assert judged(*few, varied_lacks_db=1.5).lacks_db == 1.5
    assert "1.5 dB too much on variations of them" in str(judged(*few, varied_lacks_db=1.5))
    assert judged(*more, varied_lacks_db=1.5).shows, "eight tell how much they differ"


def test_why_it_is_not_shown_says_what_would_show_it() -> None:
    said = str(judged(23.0, 24.5, 25.0, 23.5))
    assert said.startswith("with 4 samples judged, at least 90% of new samples keep 1")
    assert ", but 20 dB is required; about " in said
    assert said.endswith("samples like these would show 20 dB")
    assert str(judged(25.0, 27.0, 15.0, 14.0)).endswith("more samples like these would not show 20 dB")
    assert str(judged(40.0)).startswith("1 sample judged, which says nothing about new ones")
    assert str(judged(*[130.0] * 6)) == (
        "6 samples judged, all of them exact, which does not show how far others are from float, but 20 dB is "
        "required; 29 samples like these would show 20 dB"
    )
    assert str(judged(*[45.0] * 6)) == ""
    lost = Evidence(Bound(metric="top1", max_drop=0.01), state([]), of_metric(0.03))
    assert str(lost) == (
        "with 50 samples judged, new samples may lose up to 0.03, but top1 at most 0.01 below float is required; 700 "
        "samples would show it"
    )


def test_the_first_that_is_shown_is_taken_and_otherwise_the_nearest_that_gains() -> None:
    fast, middle, slow = judged(21.0, 21.5, 22.0), judged(25.0, 25.5, 26.0), judged(50.0, 51.0, 52.0)
    looked: list[int] = []

    def choose(offered: Sequence[Evidence | None], speedups: Sequence[float] = (2.0, 1.9, 1.8)) -> int:
        looked.clear()

        def evidence(i: int) -> Evidence | None:
            looked.append(i)
            return offered[i]

        return most_credible(range(len(offered)), evidence, lambda i: speedups[i])

    assert choose([fast, middle, slow]) == 2
    assert choose([slow, fast, middle]) == 0
    assert looked == [0], "no more are looked at than are needed"
    assert choose([fast, middle]) == 1, "none is shown: the more accurate one"
    assert choose([middle, fast]) == 0
    assert choose([fast, middle], [1.06, 1.04]) == 0, "more accurate, but not shown either, and hardly faster"
    assert choose([fast, slow], [1.7, 1.02]) == 0, "shown, but it hardly gains and loses much: dynamic, most often"
    assert looked == [0]
    assert choose([fast, slow], [1.7, 1.06]) == 1, "shown, and it gains"
    assert choose([fast, slow], [1.1, 1.02]) == 1, "shown, and hardly slower"
    assert choose([None, slow]) == 0, "nothing can be told of random samples"
    assert choose([judged(*[130.0] * 3), middle]) == 0, "exact on what was judged is nearer than what differs"
    unknown, searched = judged(30.0), judged(30.0, searched_db=33.0)
    assert choose([unknown, searched]) == 1, "one sample: the search's figure decides"


def confirmed(speedup: float, evidence: Evidence | None, low: float | None = None) -> Confirmed:
    gained = Interval(speedup, speedup if low is None else low, speedup)
    searched = SimpleNamespace(sqnr_db=25.0)
    best = SimpleNamespace(is_float=False, confirmed=True, speedup=gained, selection=searched, origin="cut 1")
    return Confirmed(
        best=cast(Best, best),
        baseline_ms=1.0,
        file=Path("m.onnx"),
        placement=Placement(),
        rejected=(),
        rounds=Rounds(effort=Effort(5, 1, 3, 8)),
        on_others=OnOthers(evidence=evidence),
    )


def test_a_search_goes_on_for_what_the_statement_lacks_and_takes_what_shows_it() -> None:
    unproven, proven = judged(21.0, 21.5, 22.0), judged(50.0, 51.0, 52.0)
    fast, slow = confirmed(2.0, unproven), confirmed(1.3, proven)
    assert fast.least_db(20.0) == pytest.approx(25.0 + unproven.lacks_db)
    assert slow.least_db(20.0) is None
    taken = fast.or_better(slow)
    assert taken.best is slow.best
    assert "cut 1 was faster (2.00x), but its bound is not shown: with 3 samples judged" in taken.troubles[-1]
    assert fast.or_better(confirmed(1.3, proven, low=0.9)) is fast, "no gain is shown"
    assert fast.or_better(confirmed(1.02, proven)) is fast, "hardly a gain"
    assert confirmed(1.1, unproven).or_better(confirmed(1.02, proven)).best.speedup.value == 1.02, "nor much lost"
    assert fast.or_better(confirmed(1.9, unproven)) is fast
    assert slow.or_better(fast).best is slow.best, "faster, and not shown"


def test_where_an_evaluation_shows_nothing_the_usual_accuracy_goes_before_speed() -> None:
    """A detector that had lost detections on other pictures was delivered at 13 dB, as few pictures said nothing."""
    says_nothing = Verdict(evaluator="mine", asked=False, failure="there was no time for it")

    def found(db: float, least_db: float | None = None) -> Evidence:
        return replace(Evidence(Bound(min_sqnr_db=least_db), state([])), evaluated=says_nothing, searched_db=db)

    noisy, usual = found(13.0), found(20.5)
    assert noisy.lacks_db == noisy.below_usual_db == pytest.approx(7.0)
    assert usual.below_usual_db == 0.0
    assert found(13.0, 10.0).below_usual_db == 0.0, "the user said what is enough"
    assert Evidence(Bound(), state([]), searched_db=13.0).below_usual_db == 0.0, "nothing was to be shown"
    lost = replace(usual, unseen_db=15.4)
    assert lost.breaks
    assert lost.lost_unseen_db == pytest.approx(4.6)
    assert "its SQNR is 15.4 dB, below the 20 dB" in lost.broken
    assert not replace(usual, unseen_db=20.1).breaks
    assert not replace(lost, usual_db=15.0).breaks, "as noisy as a recipe for which the evaluation shows the bound"
    assert not replace(lost, bound=Bound(min_sqnr_db=10.0), statement=state([15.0, 15.4], 10.0)).breaks
    shown = Verdict(evaluator="mine")
    assert not replace(lost, evaluated=shown).breaks, "the evaluation shows it"
    chosen = most_credible([noisy, usual], lambda e: e, lambda e: 2.0)
    assert chosen is usual
    fast, slow = confirmed(2.0, noisy), confirmed(1.3, usual)
    assert fast.least_db(None) == pytest.approx(25.0 + 7.0)
    taken = fast.or_better(slow)
    assert taken.best is slow.best
    assert "cut 1 was faster (2.00x), but its bound is not shown" in taken.troubles[-1]
    assert fast.or_better(confirmed(1.3, usual, low=0.9)) is fast, "no gain is shown"
    assert slow.or_better(fast).best is slow.best, "faster, and noisier than is usual"
    assert slow.or_better(confirmed(1.5, usual)).best is not slow.best, "a control"


@pytest.mark.parametrize("others", [1, 4])
@pytest.mark.parametrize("each", [[20.4]])
def test_one_sample_has_the_margin_of_other_models(each: list[float], others: int) -> None:
    """It has no spread of its own: with a floor only, its margin was 2 dB."""
    assert margin_db(np.array(each), others, 0.8) > 2.2
    assert margin_db(np.array(each * 20), others, 0.8) < margin_db(np.array(each), others, 0.8)


def model(folder: Path) -> Path:
    b = Builder()
    y = b.conv("a", b.input("x", (1, 3, 12, 12)), 8, relu=True)
    b.output(b.conv("b", y, 4))
    onnx.save(b.model(), path := folder / "m.onnx")
    return path


def samples(folder: Path, count: int) -> Path:
    rng = np.random.default_rng(0)
    np.savez(path := folder / "data.npz", x=rng.random((count, 3, 12, 12)).astype(np.float32))
    return path


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize(
    ("count", "least", "more", "code"),
    [
        (1, 10.0, [], UNPROVEN),
        (4, 30.0, [], UNPROVEN),
        (4, 30.0, ["--accept-unproven"], 0),
        (8, 10.0, [], 0),
        (4, None, ["--no-bound"], 0),
    ],
)
def test_the_first_line_the_json_and_the_exit_code_agree(
    count: int, least: float | None, more: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "out"
    bound = [] if least is None else ["--min-sqnr", f"{least:g}"]
    options = [
        "--target",
        "null",
        "--max-measurements",
        "4",
        "--budget",
        "none",
        "--augment",
        "none",
        "--quiet",
        *bound,
        *more,
    ]
    line = ["tune", str(model(tmp_path)), "--data", str(samples(tmp_path, count)), "-o", str(out), *options]
    monkeypatch.setattr(sys, "argv", ["inlay", *line])
    with pytest.raises(SystemExit) as ended:
        copy_context().run(commands.main)  # its clock counts from the start of this process, and later commands' do not
    result = json.loads((out / "result.json").read_text())
    assert not result["best"]["is_float"]
    assert ended.value.code == code
    unproven = result["best"]["bound_shown"] is False
    assert unproven == (code == UNPROVEN or "--accept-unproven" in more)
    first = capfd.readouterr().out.splitlines()[0]
    assert first.startswith("BOUND NOT SHOWN: ") == unproven
    assert bool(result["best"]["bound_note"]) == unproven
    for words in (accuracy_words(result), page_verdict(result)):
        assert ("not shown" in words) == unproven
    if least is None:
        assert result["best"]["bound_shown"] is None


def test_from_python_the_result_carries_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "target": "null",
        "max_measurements": 4,
        "budget": None,
        "augment": "none",
        "min_sqnr": 30.0,
    }
    data = samples(tmp_path, 4)
    result = inlay.tune(model(tmp_path), data=data, out=tmp_path / "out", **options)
    assert isinstance(result, inlay.TuneResult)
    assert (result.best.bound_shown, result.exit_code) == (False, UNPROVEN)
    assert result.summary().startswith("BOUND NOT SHOWN: ")
    assert str(next(iter(render.verdict(result)))).startswith("BOUND NOT SHOWN: ")
    accepted = inlay.tune(model(tmp_path), data=data, out=tmp_path / "out", accept_unproven=True, **options)
    assert isinstance(accepted, inlay.TuneResult)
    assert (accepted.best.bound_shown, accepted.exit_code) == (False, 0), "the same run goes on"


@pytest.mark.parametrize(
    ("more", "shown", "code"),
    [
        ({}, False, UNPROVEN),
        ({"accept_unproven": True}, False, 0),
        ({"no_bound": True}, None, 0),
        ({"min_sqnr": 300.0}, None, 0),  # float is delivered, of which there is nothing to show
    ],
)
def test_without_samples_no_bound_is_shown(more: dict[str, Any], shown: bool | None, code: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"target": "null", "max_measurements": 4, "budget": None, "augment": "none"}
    result = inlay.tune(model(tmp_path), out=tmp_path / "out", **options, **more)
    assert isinstance(result, inlay.TuneResult)
    assert (result.best.bound_shown, result.exit_code) == (shown, code)
    assert result.best.is_float == ("min_sqnr" in more)
    assert result.summary().startswith("BOUND NOT SHOWN: no samples were given") == (shown is False)
    assert any(note.startswith("NO SAMPLES WERE GIVEN") for note in result.notes)


def test_what_the_judged_samples_themselves_break_is_no_question_of_more_samples() -> None:
    """A metric that falls too far on every judged sample is not "not shown": twenty samples like these show nothing."""
    few = np.array([0.2, 0.3, 0.25, 0.4])
    pairs = Pairs(
        name="mine",
        value=0.7,
        drop=0.2875,
        samples=4,
        hits=None,
        is_agreement=False,
        drop_of=lambda chosen: float(few[chosen].mean()),
    )
    told = state_metric(pairs, 0.01, np.random.default_rng(0), lambda: 0.0)
    assert told.breaks_bound
    assert told.needed is None
    assert "would hardly help" in str(told)
    by_metric = Bound(metric="mine", max_drop=0.01)
    found = Evidence(by_metric, state([40.0] * 4), told)
    assert found.breaks
    assert str(found) == "mine falls by 0.2875 on 4 samples, more than the 0.01 allowed"
    kept = state_metric(replace(pairs, drop=0.0), 0.01, np.random.default_rng(0), lambda: 0.0)
    assert not Evidence(by_metric, state([40.0] * 4), kept).breaks, "then it is open"
    assert "20 samples would show it" in str(Evidence(by_metric, state([40.0] * 4), kept))
    below = judged(18.0, 19.0, 21.0)
    assert below.breaks
    assert str(below) == "the mean SQNR of 3 samples, judged one by one, is 19.3 dB, below the 20 dB required"
    assert below.rank < judged(20.5, 20.6, 20.7).rank, "what breaks nothing is nearer to the bound"


def test_unseen_samples_that_are_noisier_than_an_evaluation_allows_speak_against_it() -> None:
    """Where it told of no samples of its own: its data may be the very ones that ranges were chosen by."""
    score = ScoreFound(name="mAP", value=0.96, of_float=1.0, fall=0.04, allowed=0.05, statement=None)
    verdict = Verdict(evaluator="mine", scores=(score,), needs_db=21.0)
    found = Evidence(Bound(), state([]), evaluated=verdict, searched_db=26.7, unseen_db=14.7)
    assert not found.shows
    assert not found.breaks
    assert found.lacks_db == pytest.approx(6.3)
    assert "unseen samples have 14.7 dB" in str(found)
    assert "21.0 dB are needed" in str(found)
    assert replace(found, unseen_db=22.0).shows
    assert replace(found, unseen_db=None).shows
    assert found.rank < replace(found, unseen_db=20.0).rank < replace(found, unseen_db=22.0).rank
    by_samples = replace(score, statement=of_metric(0.005))
    assert replace(found, evaluated=replace(verdict, scores=(by_samples,))).shows, "its own samples say more"


def test_of_models_that_were_not_evaluated_the_less_noisy_one_is_nearer_to_the_bound() -> None:
    late = Verdict(evaluator="mine", failure="no time", asked=False, needs_db=30.0)
    loud, quiet = (Evidence(Bound(), state([]), evaluated=late, searched_db=db) for db in (25.0, 35.0))
    broken = replace(loud, evaluated=Verdict(evaluator="mine", failure="it fails"))
    assert broken.rank < loud.rank < quiet.rank


def test_a_contender_that_its_samples_break_is_rejected() -> None:
    """Not delivered with a word of doubt: measured below the bound, it is outside of it."""
    trial = SimpleNamespace(outcome=None, accuracy=SimpleNamespace(sqnr_db=25.0))
    candidate = SimpleNamespace(placement=object(), source=None, trial=trial, origin="cut 1")
    entry = SimpleNamespace(key="k", candidate=candidate)
    given = cast(Candidate, SimpleNamespace(key="given", trial=SimpleNamespace(outcome=None)))
    for found, keeps in ((judged(18.0, 19.0, 21.0), False), (judged(21.0, 22.0, 23.0), True)):
        weigh = cast(Any, lambda entry, unseen, until, found=found: found)
        verifier = Verifier(cast(Worker, None), given, None, BOUND, Deadline(), None, weigh)
        assert verifier.keeps(cast(Entry, entry))
        verifier.evidence(cast(Entry, entry), Deadline())
        assert verifier.keeps(cast(Entry, entry)) is keeps
        assert [r.reason for r in verifier.rejected] == ([] if keeps else [str(found)])


def test_a_delivered_model_that_breaks_its_bound_is_told_so_first() -> None:
    note = "mine falls by 0.3"
    best = cast(Any, SimpleNamespace(bound_shown=False, bound_note=note, bound_broken=True))
    assert str(Best.doubt.fget(best)) == f"BELOW THE BOUND: {note}"  # type: ignore[attr-defined]
    best.bound_broken = False
    assert str(Best.doubt.fget(best)) == f"BOUND NOT SHOWN: {note}"  # type: ignore[attr-defined]
    best.bound_shown = True
    assert not str(Best.doubt.fget(best))  # type: ignore[attr-defined]
