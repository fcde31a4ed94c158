"""What is rejected on unseen samples, and how much more accuracy the next attempt asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnx
import pytest

from inlay.data import Samples
from inlay.deadline import NEVER, Deadline
from inlay.measure.client import Worker
from inlay.measure.paired import Series
from inlay.quant.accuracy import Bound
from inlay.quant.tolerance import state
from inlay.run.confirm.contenders import Entry
from inlay.run.confirm.delivered import Confirmed, Rounds, best_of, ratio_of
from inlay.run.confirm.evidence import Evidence
from inlay.run.confirm.verification import OnOthers, Rejected, Verifier
from inlay.run.evaluate import Candidate
from inlay.run.result import Best
from inlay.run.robustness import StressTest
from inlay.run.schedule import Effort
from inlay.targets.base import Artifact
from inlay.testing import Builder
from inlay.trial import Accuracy, Failed, Interval, Latency, Measured, Proposal, Trial
from inlay.types import Placement, Port, QType

FILE = Artifact(Path("model.onnx"), "digest")
EFFORT = Effort(5, 1, 3, 8)
QUANTIZED = Placement([(Port("conv", 0), QType.UINT8)])


def rejected(unseen: Accuracy | Failed, searched_db: float = 25.0, placement: Placement = QUANTIZED) -> Rejected:
    outcome = Measured(Latency(1e6, Interval(1.2, 1.1, 1.3), 9), Accuracy(True, searched_db))
    return Rejected(Candidate("key", Trial(Proposal(placement, "cut 1"), outcome), lambda: FILE, placement), unseen)


def outside(sqnr_db: float) -> Accuracy:
    return Accuracy(False, sqnr_db, reason=f"SQNR of output y is {sqnr_db} dB, below 20 dB")


def confirmed(*found: Rejected) -> Confirmed:
    return Confirmed(
        best=cast(Best, SimpleNamespace(is_float=True)),
        baseline_ms=1.0,
        file=FILE.path,
        placement=Placement(),
        rejected=found,
        rounds=Rounds(effort=EFFORT),
    )


def test_the_next_attempt_asks_for_what_was_missing() -> None:
    assert rejected(outside(17.0)).least_db(20.0) == pytest.approx(28.0)
    assert rejected(outside(19.99)).least_db(20.0) == pytest.approx(25.1), "another model, however narrow it was"
    assert rejected(outside(17.0)).least_db(None) == pytest.approx(28.0), "under a metric: half the noise"
    both = confirmed(rejected(outside(17.0)), rejected(outside(10.0), 24.0))
    assert both.least_db(20.0) == pytest.approx(34.0)
    assert confirmed().least_db(20.0) is None


def test_a_later_search_never_makes_the_result_worse() -> None:
    def decided(speedup: float, is_float: bool = False, proven: bool = True) -> Confirmed:
        gained = Interval(speedup, speedup, speedup)
        best = cast(Best, SimpleNamespace(is_float=is_float, confirmed=proven, speedup=gained))
        return replace(confirmed(), best=best)

    fallback, slower, faster = decided(1.3), decided(1.2), decided(1.4)
    assert fallback.or_better(faster) is faster
    assert fallback.or_better(slower) is fallback
    assert fallback.or_better(decided(1.5, proven=False)) is fallback
    assert fallback.or_better(decided(1.5, is_float=True)) is fallback
    assert decided(1.0, is_float=True).or_better(slower) is slower


def test_a_sturdy_model_replaces_one_that_is_hardly_faster_and_never_below_an_anchor() -> None:
    def decided(speedup: float, lacks_db: float, anchor: float = 1.0) -> Confirmed:
        gained = Interval(speedup, speedup, speedup)
        searched = SimpleNamespace(sqnr_db=25.0)
        best = SimpleNamespace(is_float=False, confirmed=True, speedup=gained, selection=searched, origin="cut 1")
        rounds, others = Rounds(effort=EFFORT, anchor_speedup=anchor), OnOthers(lacks_db=lacks_db)
        return replace(confirmed(), best=cast(Best, best), rounds=rounds, on_others=others)

    fragile, sturdy = decided(1.3, 2.0), decided(1.2, 0.0)
    assert fragile.least_db(20.0) == 27.0
    assert sturdy.least_db(20.0) is None, "nothing more is needed"
    taken = fragile.or_better(sturdy)
    assert taken.best is sturdy.best
    assert taken.troubles == (
        "cut 1 had 1.30x, but on varied samples it falls 5.0 dB short of the bound (--augment none allows that)",
    )
    assert fragile.or_better(decided(1.2, 1.0)) is fragile, "fragile as well, and slower"
    assert fragile.or_better(decided(1.1, 0.0)) is fragile, "too slow"
    narrow = decided(1.08, 2.0)
    assert narrow.or_better(decided(1.04, 0.0)) is narrow, "hardly a gain is left"
    assert narrow.or_better(decided(1.06, 0.0)).best.speedup.value == 1.06
    beside_anchor = decided(1.3, 2.0, anchor=1.25)
    assert beside_anchor.or_better(sturdy) is beside_anchor, "an anchor would be faster"
    anchor = decided(1.3, 2.0, anchor=1.3)
    assert anchor.least_db(20.0) is None, "it is the best anchor: nothing slower may replace it"


class VariedWorker:
    """Runs every model with the noise that its digest names, in dB below the signal."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, file: Artifact, feeds: Sequence[Path]) -> list[dict[str, np.ndarray]]:
        self.runs += 1
        noise = 10.0 ** (-float(file.digest) / 20.0)
        return [{"y": np.array([1.0 + noise, 1.0 - noise], np.float32)} for _ in feeds]

    def drop(self, file: Artifact) -> None: ...


@pytest.mark.parametrize(("db", "least", "lacks_db"), [(25.0, 20.0, 0.0), (17.5, 20.0, 0.0), (12.0, 20.0, 5.0)])
def test_what_variations_lack_beyond_what_they_may_lose(db: float, least: float, lacks_db: float) -> None:
    signal = {"y": np.ones(2, np.float32)}
    samples = Samples(({"x": np.zeros(2, np.float32)},), "real", "test")
    test = StressTest(["0.8x brightness"], [Path("0.npz")], [signal], samples)
    worker = VariedWorker()
    given = Candidate("given", Trial(Proposal(Placement(), "given"), Failed("run", "")), lambda: FILE, None)
    bound = Bound(min_sqnr_db=least)
    verifier = Verifier(cast(Worker, worker), given, None, bound, Deadline(), test)
    searched = rejected(outside(db)).candidate
    entry = Entry(searched, Artifact(Path("model.onnx"), str(db)))
    assert verifier.lacks_db(entry, Deadline(0.0, lambda: 1.0)) == 0.0, "there is no time left"
    assert (worker.runs, verifier.lacking) == (0, {}), "and nothing is known"
    assert verifier.lacks_db(entry, NEVER) == pytest.approx(lacks_db, abs=0.1)
    assert verifier.lacks_db(entry, NEVER) == verifier.lacking["key"]
    assert worker.runs == 1, "it is judged once"
    plain = replace(entry, candidate=replace(searched, placement=Placement()))
    assert verifier.lacks_db(plain, NEVER) == 0.0, "float lacks nothing"
    by_metric = Verifier(cast(Worker, worker), given, None, Bound(max_drop=0.1), Deadline(math.inf, lambda: 0.0), test)
    assert by_metric.lacks_db(entry, NEVER) == 0.0, "a metric decides"


def test_variations_that_there_was_no_time_for_count_once_they_are_judged() -> None:
    """What is stated of few samples must not rest on variations that nobody looked at."""
    signal, samples = {"y": np.ones(2, np.float32)}, Samples(({"x": np.zeros(2, np.float32)},), "real", "test")
    test = StressTest(["0.8x brightness"], [Path("0.npz")], [signal], samples)
    given = Candidate("given", Trial(Proposal(Placement(), "given"), Failed("run", "")), lambda: FILE, None)
    bound = Bound(min_sqnr_db=20.0)
    weigh = lambda *_: Evidence(bound, state([30.0, 31.0, 32.0], 20.0))  # noqa: E731
    verifier = Verifier(cast(Worker, VariedWorker()), given, None, bound, NEVER, test, weigh)
    entry = Entry(rejected(outside(12.0)).candidate, Artifact(Path("model.onnx"), "12.0"))
    late, found = Deadline(0.0, lambda: 1.0), []
    for until in (late, NEVER, late):
        evidence = verifier.evidence(entry, until)
        assert evidence is not None
        found.append(evidence.varied_lacks_db)
    assert found == pytest.approx([0.0, 5.0, 5.0], abs=0.1)
    weighed = verifier.weighed(entry)
    assert weighed is not None
    assert not weighed.shows


def test_a_failure_on_unseen_samples_is_no_amount_of_noise() -> None:
    failed = rejected(Failed("accuracy", "out of memory"))
    assert failed.reason == "it failed on unseen samples: out of memory"
    assert failed.least_db(20.0) is None
    assert confirmed(rejected(outside(17.0)), failed).least_db(20.0) is None, "more accuracy would not mend it"


@pytest.mark.parametrize(
    "reference", [Interval(1.2, 0.0, math.inf), Interval(1.2, 1.1, math.inf), Interval(1.2, 1.1, 1.3)]
)
@pytest.mark.parametrize("gained", [Interval(2.4, 0.0, math.inf), Interval(2.4, 2.0, 3.0)])
def test_a_ratio_of_speedups_holds_what_both_leave_open(gained: Interval, reference: Interval) -> None:
    ratio = ratio_of(gained, reference)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low <= ratio.value <= ratio.high
    known = math.isfinite(gained.high) and reference.low > 0.0
    assert math.isfinite(ratio.high) == known


def test_float_is_told_from_quantized_models() -> None:
    assert rejected(outside(17.0), placement=Placement()).is_float
    assert not rejected(outside(17.0)).is_float


@pytest.mark.parametrize(
    ("placement", "pairs", "is_float"),
    [
        (Placement(), False, True),
        (None, False, True),  # the given model
        (None, True, False),
        (Placement([(Port("act", 0), QType.DYNAMIC)]), False, False),  # its kernels leave no Q/DQ nodes in the file
        (QUANTIZED, True, False),
    ],
)
def test_what_is_delivered_is_called_float_where_nothing_is_quantized(
    placement: Placement | None, pairs: bool, is_float: bool, tmp_path: Path
) -> None:
    b = Builder()
    x = b.input("x", (1, 4))
    scale = [b.constant("scale", np.array(0.5)), b.constant("zero", np.array(3, np.uint8))]
    given = b.node("dq", "DequantizeLinear", [b.node("q", "QuantizeLinear", [x, *scale]), *scale]) if pairs else x
    b.output(b.node("act", "Relu", [given]))
    onnx.save(b.model(), tmp_path / "model.onnx")
    file, gain = Artifact(tmp_path / "model.onnx", "digest"), Interval(1.2, 1.1, 1.3)
    outcome = Measured(Latency(1e6, gain, 9), Accuracy(True, 30.0))
    trial = Trial(Proposal(placement or Placement(), "cut 1"), outcome)
    entry = Entry(Candidate("key", trial, lambda: file, placement), file, Series(np.ones(3)))
    best = best_of(entry, entry, gain, gain, None)
    assert best.is_float is is_float
    assert best.qdq_pairs == pairs
