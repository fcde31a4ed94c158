"""Outputs in parts that differ in size: what is a part, what is none, and what a lost one means for every bound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inlay.data import Ends, Joins, Samples
from inlay.quant.accuracy import Bound, Judge
from inlay.quant.parts import Parts
from inlay.trial import Accuracy

JOINED: Joins = {"y": (None, (0,) * 4 + (1,) * 8, None)}
BOXES, SCORES = "y[:, 0:4]", "y[:, 4:12]"


def detector_outputs(count: int = 6, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Boxes up to 320 beside scores up to 1, shape (1, 12, 50)."""
    rng = np.random.default_rng(seed)
    return [
        {"y": np.concatenate([rng.uniform(0, 320, (1, 4, 50)), rng.random((1, 8, 50)) ** 4], 1)} for _ in range(count)
    ]


def judged(
    want: Sequence[dict[str, np.ndarray]], got: Sequence[dict[str, np.ndarray]], bound: Bound, joins: Joins = JOINED
) -> Accuracy:
    samples = Samples(tuple({} for _ in want), "feeds", "test", joins=joins)
    return Judge(want, samples, bound, lambda outputs, labels: 1.0, confidence=None).judge(got)


def without_scores(outputs: Sequence[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """In one scale of 1.25, as a Concat in 8 bits has it."""
    return [{"y": np.round(o["y"] / 2.5) * 2.5} for o in outputs]


def test_the_worst_part_is_the_figure() -> None:
    """Noise of 0.1 is nothing to boxes; of the whole it is 60 dB."""
    want = detector_outputs()
    rng = np.random.default_rng(1)
    got = [{"y": o["y"] + 0.1 * rng.standard_normal(o["y"].shape)} for o in want]
    found = judged(want, got, Bound(20.0))
    scores = np.concatenate([a["y"][:, 4:] for a in want])
    noise = np.concatenate([a["y"][:, 4:] - b["y"][:, 4:] for a, b in zip(want, got, strict=True)])
    assert {o.name for o in found.outputs} == {BOXES, SCORES}
    assert found.sqnr_db == pytest.approx(10 * np.log10((scores**2).sum() / (noise**2).sum()))
    assert found.worst == SCORES
    assert f"SQNR of output {SCORES} is" in found.reason
    whole = judged(want, got, Bound(55.0), {"y": (None, (0,) * 12, None)})
    assert whole.feasible, "negative control: over the whole nothing is seen of it"


@pytest.mark.parametrize("bound", [Bound(), Bound(-50.0), Bound(metric="mine", max_drop=0.5)])
def test_a_part_that_is_lost_breaks_every_bound(bound: Bound) -> None:
    want = detector_outputs()
    found = judged(want, without_scores(want), bound)
    assert not found.feasible
    assert found.reason.startswith(f"output {SCORES} is lost: it is 0 everywhere")
    assert judged(want, [{"y": o["y"] * 1.01} for o in want], bound).feasible


def test_a_part_at_the_end_of_its_range_is_lost() -> None:
    """Most of what it says is gone; negative control: what a Relu sets to zero is zero in the reference too."""
    want = detector_outputs()
    clipped = [{"y": np.concatenate([o["y"][:, :4], np.minimum(o["y"][:, 4:], 0.2)], 1)} for o in want]
    assert f"output {SCORES} is lost: it is 0.2 in" in judged(want, clipped, Bound()).reason
    rectified = [{"y": np.concatenate([o["y"][:, :4], np.maximum(o["y"][:, 4:] - 0.1, 0)], 1)} for o in want]
    assert judged(rectified, rectified, Bound()).feasible
    noisy = [{"y": o["y"] * 0.8} for o in rectified]
    assert judged(rectified, noisy, Bound()).feasible


def test_values_of_one_size_are_no_parts() -> None:
    """Three scales of a detector: the last one may find nothing in a few samples."""
    rng = np.random.default_rng(0)
    outputs = [{"y": rng.random((1, 12, 50)) * np.repeat([1.0, 2.5], [4, 8])[:, None]} for _ in range(3)]
    assert not Parts.of(outputs, JOINED).divided
    outputs[0]["y"][:, 4:] *= 10
    assert Parts.of(outputs, JOINED).names == {BOXES, SCORES}


def test_each_joined_value_is_a_part_of_its_own_where_any_differ() -> None:
    """Objectness is one row beside eighty of classes of about its size: among them it would not count."""
    outputs = detector_outputs()
    joins: Joins = {"y": (None, (0,) * 4 + (1,) + (2,) * 7, None)}
    assert Parts.of(outputs, joins).names == {BOXES, "y[:, 4:5]", "y[:, 5:12]"}
    zero = [{"y": np.concatenate([o["y"][:, :4], 0 * o["y"][:, 4:5], o["y"][:, 5:]], 1)} for o in outputs]
    assert "y[:, 4:5] is lost" in judged(outputs, zero, Bound(), joins).reason


def test_indices_are_parts_where_some_are_far_larger_in_every_sample() -> None:
    """Where it cannot be seen how an output is put together; elsewhere sizes tell nothing by themselves."""
    rng = np.random.default_rng(0)
    scale = np.array([640.0, 640, 1, 1, 1, 640])
    outputs = [{"y": rng.uniform(-1, 1, (1, 40, 6)) * scale} for _ in range(4)]
    assert Parts.of(outputs, {"y": ()}).names == {"y[:, :, (0:2, 5:6)]", "y[:, :, 2:5]"}
    assert not Parts.of(outputs, {}).divided, "nothing is put together there"
    gradual = [{"y": rng.uniform(-1, 1, (1, 40, 6)) * 10.0 ** np.arange(6)} for _ in range(4)]
    assert not Parts.of(gradual, {"y": ()}).divided, "there is no gap"


def test_many_joined_values_are_parts_by_their_sizes() -> None:
    """Boxes and a score for each of forty classes, every one from a layer of its own."""
    rng = np.random.default_rng(0)
    outputs = [{"y": rng.random((1, 44, 9)) * np.repeat([300.0, 1.0], [4, 40])[:, None]} for _ in range(3)]
    joins: Joins = {"y": (None, (0,) * 4 + tuple(range(1, 41)), None)}
    assert Parts.of(outputs, joins).names == {"y[:, 0:4]", "y[:, 4:44]"}


def test_a_sample_in_which_nothing_is_found_does_not_hide_parts() -> None:
    """Shape (detections, 12): none in the second sample."""
    outputs = [{"y": o["y"][0].T} for o in detector_outputs(3)]
    outputs[1] = {"y": outputs[1]["y"][:0]}
    joins: Joins = {"y": (None, (0,) * 4 + (1,) * 8)}
    assert Parts.of(outputs, joins).names == {BOXES, SCORES}
    assert not Parts.of([{"y": outputs[1]["y"]}], joins).divided


def test_a_number_that_is_infinite_in_float_does_not_hide_a_loss() -> None:
    want = detector_outputs()
    want[0]["y"][0, 5, 7] = -np.inf
    got = without_scores(want)
    assert not np.isfinite(got[0]["y"]).all()
    assert f"output {SCORES} is lost" in judged(want, got, Bound()).reason


@pytest.mark.parametrize("case", ["classes", "rows", "padding", "dead", "sizes", "integers"])
def test_what_is_no_part(case: str) -> None:
    """Each of these has indices that are far smaller than others, and says nothing by them."""
    rng = np.random.default_rng(0)

    def output(number: int) -> np.ndarray:
        y = rng.standard_normal((1, 16, 20))
        if case == "classes":  # probabilities of which one class alone ever fires
            y = np.abs(y) * 1e-4
            y[:, 3] = rng.random(20)
        elif case == "rows":  # what is found elsewhere in another sample
            y[:, np.arange(16) != number] *= 1e-3
        elif case == "padding":
            y[:, 8:] = 0.0
        elif case == "dead":  # but for rounding
            y[:, 8:] *= 1e-7
        elif case == "sizes":  # the axis differs from sample to sample
            y[:, 8:] *= 1e-3
            y = y[:, : 10 + number]
        else:
            y = (y * 100 * np.repeat([1, 50], 8)[:, None]).astype(np.int64)
        return y

    assert not Parts.of([{"y": output(number)} for number in range(4)], {"y": ()}).divided


def test_single_samples_without_detections_say_little() -> None:
    """Scores near zero have no SQNR to speak of; statements on new samples rest on every sample's."""
    want = detector_outputs(8)
    want[5]["y"][:, 4:] *= 1e-3
    rng = np.random.default_rng(1)
    got = [{"y": o["y"] + 0.01 * rng.standard_normal(o["y"].shape)} for o in want]
    samples = Samples(tuple({} for _ in want), "feeds", "test", joins=JOINED)
    each = Judge(want, samples, Bound(), confidence=None).each_db(got)
    assert 15.0 < each[5] < np.median(each) - 5.0


def rows(p: np.ndarray, name: str = "prob") -> list[dict[str, np.ndarray]]:
    """Two classes of each sample, the second one's probabilities being ``p``."""
    return [{name: np.array([[1.0 - each, each]], np.float32)} for each in p]


def odds_judged(
    want: Sequence[dict[str, np.ndarray]], got: Sequence[dict[str, np.ndarray]], bound: Bound, computed: str = "Softmax"
) -> Accuracy:
    ends = Ends({name: frozenset([computed]) for name in want[0]} if computed else {})
    samples = Samples(tuple({} for _ in want), "feeds", "test", ends=ends)
    return Judge(want, samples, bound, confidence=None).judge(got)


@pytest.mark.parametrize("computed", ["Softmax", "Sigmoid", ""])
def test_few_probabilities_are_judged_as_log_odds_too(computed: str) -> None:
    """The small one ranks samples; beside one of nearly 1 its noise is nothing: shuffled, it still has 40 dB."""
    rng = np.random.default_rng(0)
    p = np.exp(rng.uniform(np.log(1e-3), np.log(2e-2), 40))
    want, shuffled = rows(p), rows(rng.permutation(p))
    if computed == "Sigmoid":  # one number, all but sure
        want, shuffled = ([{"prob": 1.0 - y["prob"][:, 1:]} for y in each] for each in (want, shuffled))
    found = odds_judged(want, shuffled, Bound(20.0), computed)
    whole, odds = found.outputs
    assert (whole.name, odds.name) == ("prob", "prob (log odds)")
    assert whole.sqnr_db > 30.0
    logits = [np.concatenate([np.log(y["prob"] / (1.0 - y["prob"])) for y in each]) for each in (want, shuffled)]
    expected = 10 * np.log10((logits[0] ** 2).sum() / ((logits[0] - logits[1]) ** 2).sum())
    assert odds.sqnr_db == pytest.approx(expected, abs=0.01)
    assert not found.feasible
    assert "SQNR of output prob (log odds)" in found.reason
    assert odds_judged(want, want, Bound(20.0), computed).feasible


def test_what_is_not_few_probabilities_has_no_log_odds() -> None:
    """Nor has what is a half everywhere, what nobody computed as probabilities, or what there are many of."""
    rng = np.random.default_rng(0)
    halves = rows(0.5 + 0.05 * rng.standard_normal(16))
    many = [{"y": np.full((1, 20), 0.05)} for _ in range(4)]
    numbers = [{"y": rng.random((1, 3))} for _ in range(4)]
    for outputs, computed in ((halves, "Softmax"), (many, "Softmax"), (numbers, ""), (numbers, "Gemm")):
        assert [o.name for o in odds_judged(outputs, outputs, Bound(), computed).outputs] == [*outputs[0]]


def test_single_samples_are_not_judged_by_log_odds() -> None:
    """One number's error may be anything: it counts over all samples."""
    rng = np.random.default_rng(0)
    want = rows(np.exp(rng.uniform(np.log(1e-3), np.log(2e-2), 12)))
    got = rows(np.exp(rng.uniform(np.log(1e-3), np.log(2e-2), 12)))
    judge = Judge(want, Samples(tuple({} for _ in want), "feeds", "test"), Bound(20.0))
    assert min(judge.each_db(got)) > 30.0 > 20.0 > judge.judge(got).sqnr_db
