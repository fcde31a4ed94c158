"""What counts as an error: amounts by their energy, decisions by how many change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from inlay.data import Samples
from inlay.errors import DataError
from inlay.quant.accuracy import CHECKED_LATER, EXACT_DB, UNCHECKED, Bound, Judge, margin_db
from inlay.quant.metrics import AGREEMENTS, Metric, top1
from inlay.trial import Accuracy


def judged(want: np.ndarray, got: np.ndarray, least_db: float = 20.0) -> Accuracy:
    """Of one output called y, in two samples."""
    reference, outputs = ([{"y": half} for half in np.array_split(y, 2)] for y in (want, got))
    samples = Samples(({}, {}), "feeds", "test")
    return Judge(reference, samples, Bound(min_sqnr_db=least_db), confidence=None).judge(outputs)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, bool])
def test_decisions_count_by_how_many_change(dtype: type[np.generic] | type[bool]) -> None:
    """Whatever the classes are called: numbers of classes are names."""
    rng = np.random.default_rng(0)
    want: np.ndarray = rng.integers(0, 2, 1000).astype(dtype)
    got = want.copy()
    got[::100] = 1 - got[::100] if dtype is not bool else ~got[::100]
    found = judged(want, got, least_db=20.5)
    assert found.sqnr_db == pytest.approx(20.0)
    assert found.reason == "1.0% of the integers in output y change: 20.0 dB, below 20.5 dB"
    if dtype is not bool:
        names: np.ndarray = np.array([7, 100_000], dtype)
        assert judged(names[want], names[got]).sqnr_db == pytest.approx(20.0)
    assert judged(want, want).sqnr_db == EXACT_DB


def test_what_is_required_is_one_number() -> None:
    """The bound and the margin for samples that differ, as the SQNR that falls short of it may lie above the bound."""
    rng = np.random.default_rng(0)
    want = [{"y": rng.normal(0, 1, 500).astype(np.float32)} for _ in range(12)]
    parts = [10 ** (-db / 20) for db in np.linspace(12, 36, 12)]
    got = [{"y": w["y"] + p * rng.normal(0, 1, 500).astype(np.float32)} for w, p in zip(want, parts, strict=True)]
    samples = Samples(({},) * 12, "feeds", "test")
    exact = Judge(want, samples, Bound(min_sqnr_db=0.0)).judge(got).sqnr_db
    least = float(np.floor(exact))
    found = Judge(want, samples, Bound(min_sqnr_db=least)).judge(got)
    assert found.sqnr_db > least
    assert not found.feasible
    margin = found.margin_db
    assert found.reason == (
        f"SQNR of output y is {found.sqnr_db:.1f} dB, below the {least + margin:.1f} dB required: {least:g} dB and a "
        f"margin of {margin:.1f} dB for the spread between samples"
    )


def test_amounts_count_by_their_energy() -> None:
    """Negative control: an image in 8 bits with every number off by one is near, although all of them change."""
    want = np.full(1000, 200, np.uint8)
    assert judged(want, want + np.uint8(1)).sqnr_db == pytest.approx(20 * np.log10(200))
    assert judged(want.astype(np.float32), want + np.float32(2)).sqnr_db == pytest.approx(40.0)
    found = judged(want, want // 2)
    assert "SQNR of output y is 6.0 dB" in found.reason
    assert not judged(want.astype(np.int64), want.astype(np.int64) + 1).feasible


def test_another_number_of_decisions_is_judged_by_the_common_part() -> None:
    """What only one of them has is wrong; in two other sizes there is no common part, as bad as can be."""
    found = judged(np.arange(10), np.arange(8))
    assert not found.feasible
    assert found.sqnr_db == pytest.approx(-10.0 * np.log10((1 + 5) / 10)), "the second sample is another one"
    assert found.reshaped == "output y has another shape than float's in 2 of 2 samples ([4] in place of [5])"
    assert found.reason == found.reshaped
    assert judged(np.zeros((4, 5), int), np.zeros((5, 4), int)).sqnr_db == -EXACT_DB
    judge = Judge([{"y": np.ones(5), "z": np.ones(5)}], Samples(({},), "feeds", "test"), Bound(), confidence=None)
    several = judge.judge([{"y": np.ones(4), "z": np.ones(3)}]).reshaped
    assert several.endswith("([4] in place of [5]), and 1 further output differs in shape")


def test_a_metric_that_cannot_take_another_shape_is_a_judgement() -> None:
    """The durations that a model predicts decide how long its output is. A metric that fails on float's own shape, the
    negative control, is the user's to mend."""

    def error(outputs: Sequence[Mapping[str, np.ndarray]], labels: np.ndarray | None) -> float:
        assert labels is not None
        if any(y["y"].min() < 0 for y in outputs):
            raise ValueError("a distance is negative")
        return -float(np.mean([np.square(y["y"] - label).mean() for y, label in zip(outputs, labels, strict=True)]))

    samples = Samples(({}, {}), "feeds", "test", labels=np.zeros((2, 5)))
    judge = Judge([{"y": np.ones(5)}] * 2, samples, Bound(None, "error", 0.5), error, confidence=None)
    assert judge.judge([{"y": np.full(5, 1.1)}] * 2).feasible
    found = judge.judge([{"y": np.ones(5)}, {"y": np.ones(4)}])
    assert not found.feasible
    shapes = "output y has another shape than float's in 1 of 2 samples ([4] in place of [5])"
    assert found.reason.startswith(f"{shapes}: the metric failed")
    with pytest.raises(DataError, match="the metric failed"):
        judge.judge([{"y": np.full(5, -1.0)}] * 2)


def test_a_metric_that_counts_falls_by_a_count() -> None:
    """One of 22 samples is no 4.545 % of anything; a metric that counts nothing is the negative control."""
    labels = np.arange(22) % 3
    reference = [{"y": np.eye(3)[[label]]} for label in labels]
    outputs = [reference[1], *reference[1:]]
    samples = Samples(({},) * 22, "feeds", "test", labels=labels)

    def reason(metric: Metric, name: str) -> str:
        return Judge(reference, samples, Bound(None, name, 0.01), metric, confidence=None).judge(outputs).reason

    assert reason(top1, "top1") == "top1 falls by 1 of 22 (0.04545), more than 0.01"
    assert reason(AGREEMENTS["top1-agreement"], "top1-agreement").startswith(
        "top1-agreement falls by 1 of 22 (0.04545)"
    )
    assert reason(lambda found, wanted: top1(found, wanted), "mine") == "mine falls by 0.04545, more than 0.01"


def test_an_output_without_signal_is_left_out_and_named() -> None:
    """No detections: what quantization makes of all zeros has no scale. Where there is nothing else, it counts."""
    rng = np.random.default_rng(0)
    answers = rng.standard_normal((2, 50))
    reference = [{"boxes": np.zeros((3, 4)), "y": y} for y in answers]
    outputs = [{"boxes": np.full((3, 4), 1e-3), "y": y * 1.01} for y in answers]
    samples = Samples(({}, {}), "feeds", "test")
    judge = Judge(reference, samples, Bound(20.0), confidence=None)
    assert judge.silent == ("boxes",)
    found = judge.judge(outputs)
    assert found.feasible
    assert [o.name for o in found.outputs] == ["y"]
    assert judge.each_db(outputs) == pytest.approx((40.0, 40.0))
    alone = Judge([{"boxes": r["boxes"]} for r in reference], samples, Bound(20.0), confidence=None)
    assert not alone.silent
    assert not alone.judge([{"boxes": o["boxes"]} for o in outputs]).feasible


def test_a_sample_without_signal_is_measured_by_the_others() -> None:
    """Something was found in one of two samples."""
    reference = [{"y": np.zeros(50)}, {"y": np.ones(50)}]
    judge = Judge(reference, Samples(({}, {}), "feeds", "test"), Bound(), confidence=None)
    assert judge.each_db([{"y": np.full(50, 0.1)}, {"y": np.ones(50)}]) == pytest.approx((10 * np.log10(50.0), 300.0))


def test_samples_that_made_the_ranges_count_only_against_a_model() -> None:
    """The figure is the worse of that of the samples apart and that of all; how they differ is told by all."""
    each = [{"y": np.ones(50)}] * 6
    samples = Samples(({},) * 6, "feeds", "test")
    judge = Judge(each, samples, Bound(20.0), apart=2)

    def sqnr_db(*errors: float) -> float:
        return judge.judge([{"y": np.full(50, 1.0 + e)} for e in errors]).sqnr_db

    assert sqnr_db(0.1, 0.1, 0.01, 0.01, 0.01, 0.01) == pytest.approx(20.0)
    assert sqnr_db(0.01, 0.01, 0.1, 0.1, 0.1, 0.1) == pytest.approx(10 * np.log10(6 / (0.0002 + 0.04)))


@pytest.mark.parametrize(("confidence", "known"), [(UNCHECKED, 12), (CHECKED_LATER, 12), (CHECKED_LATER, 6)])
def test_a_margin_is_kept_as_often_as_it_says(confidence: float, known: int) -> None:
    """Four others, of the same kind, whose differences neither bound of the margin hides."""
    rng = np.random.default_rng(0)
    draws = rng.normal(30.0, 2.0, (4000, known + 4))
    kept = [d[known:].mean() >= d[:known].mean() - margin_db(d[:known], 4, confidence) for d in draws]
    assert np.mean(kept) == pytest.approx(confidence, abs=0.03)


def test_more_samples_and_a_later_check_ask_for_less_margin() -> None:
    each = np.random.default_rng(1).normal(30.0, 1.5, 24)
    alone, more = margin_db(each[:4], 4, UNCHECKED), margin_db(each, 4, UNCHECKED)
    assert margin_db(each, 4, CHECKED_LATER) < more < alone


@pytest.mark.parametrize(
    ("there", "is_kept"), [(-np.inf, True), (-3.4e38, True), (50.0, False), (np.nan, False), (np.inf, False)]
)
def test_what_was_minus_infinity_must_stay_below_all_else(there: float, is_kept: bool) -> None:
    want = np.tile(np.linspace(-4, 4, 40, dtype=np.float32), (2, 1))
    want[:, :5] = -np.inf
    got = want.copy()
    got[:, :5] = there
    assert judged(want, got).feasible is is_kept
