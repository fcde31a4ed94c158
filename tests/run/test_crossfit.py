"""Of few samples every one is judged with ranges that it had no part in, and what they cannot show is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inlay
from inlay.cli import quantized, render
from inlay.report.page import accuracy_words
from inlay.testing import Builder

pytestmark = pytest.mark.usefixtures("null_in_process")


def model(folder: Path, convs: int = 1) -> Path:
    b = Builder()
    y = b.input("x", (1, 3, 12, 12))
    for number in range(convs):
        y = b.conv("a" if not number else f"a{number}", y, 8, relu=True)
    b.output(b.conv("b", y, 4))
    onnx.save(b.model(), path := folder / "m.onnx")
    return path


def images(count: int, loud: int = -1) -> list[dict[str, np.ndarray]]:
    """Of which one may be far louder than the others."""
    rng = np.random.default_rng(0)
    return [{"x": (rng.random((1, 3, 12, 12)) * (4.0 if i == loud else 1.0)).astype(np.float32)} for i in range(count)]


def tuned(
    folder: Path, data: list[dict[str, np.ndarray]] | None, convs: int = 1, **more: Any
) -> tuple[inlay.TuneResult, dict[str, Any]]:
    options: dict[str, Any] = {"target": "null", "max_measurements": 4, "augment": "none", "min_sqnr": 10.0, **more}
    result = inlay.tune(model(folder, convs), data=data, out=folder / "out", **options)
    assert not result.best.is_float
    return result, json.loads((folder / "out" / "result.json").read_text())["best"]


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.matrix
def test_n_samples_give_n_judgements(tmp_path: Path, count: int) -> None:
    result, best = tuned(tmp_path, images(count))
    said = best["statement"]
    assert (said["samples"], said["assumption"], said["needed"]) == (count, "normal", 29)
    assert said["limit_db"] < said["least_db"]
    assert said["sentence"] in "\n".join(map(str, render.verdict(result)))
    assert said["sentence"] in accuracy_words({"best": best})


@pytest.mark.exhaustive
def test_one_sample_verifies_nothing(tmp_path: Path) -> None:
    _, best = tuned(tmp_path, images(1))
    assert not best["verified"]
    assert (best["statement"]["samples"], best["statement"]["limit_db"]) == (0, None)
    assert "29 samples would be needed to state 10 dB" in best["statement"]["sentence"]


@pytest.mark.exhaustive
def test_many_samples_need_no_assumption(tmp_path: Path) -> None:
    _, best = tuned(tmp_path, images(60))
    assert best["statement"]["assumption"] == "distribution-free"
    assert best["verified"]
    assert best["statement"]["keeps_bound"] is True


@pytest.mark.exhaustive
def test_random_samples_state_nothing(tmp_path: Path) -> None:
    assert tuned(tmp_path, None)[1]["statement"] is None


@pytest.mark.exhaustive
def test_a_sample_that_calibration_saw_is_judged_without_it(tmp_path: Path) -> None:
    """The loud one is for calibration: the delivered ranges fit it, and those of the others do not."""
    _, best = tuned(tmp_path, images(4, loud=1))
    assert best["sqnr_db"] > best["statement"]["least_db"] + 5.0
    assert best["statement"]["keeps_bound"] is False


@pytest.mark.parametrize("count", [24, 25])
@pytest.mark.matrix
def test_a_metric_is_judged_on_all_samples_with_its_exact_interval(tmp_path: Path, count: int) -> None:
    """A quarter is unseen, far too few for a bound of 10 %: the others are judged, too, each without a part in it."""
    asked: dict[str, Any] = {"metric": "top1-agreement", "max_drop": 0.5, "min_sqnr": None}
    result, best = tuned(tmp_path, images(count), **asked)
    said = best["metric_statement"]
    assert (said["samples"], said["hits"]["of"], said["method"]) == (count, count, "exact")
    assert said["value"] == said["hits"]["right"] / count
    assert said["most_drop"] > said["drop"]
    assert said["keeps_bound"] is True
    assert f"  Metric: {said['sentence']}." in render.verdict(result)
    assert said["sentence"] in accuracy_words({"best": best})


@pytest.mark.exhaustive
def test_labels_stay_with_their_samples_through_the_folds(tmp_path: Path) -> None:
    """The label of a sample is its mean, which the mean of the outputs goes with.

    Twelve unseen samples could show a drop of 0.3, so that no more are judged than the SQNR asks for.
    """
    data, seen = images(48), []
    labels = np.array([feed["x"].mean() for feed in data])

    def score(outputs: Any, truth: Any) -> float:
        if len(outputs) == 29:
            seen.append(np.corrcoef([y[next(iter(y))].mean() for y in outputs], truth)[0, 1])
        return float(np.mean([y[next(iter(y))].mean() for y in outputs]))

    _, best = tuned(tmp_path, data, metric=score, labels=labels, max_drop=0.3, min_sqnr=None)
    said = best["metric_statement"]
    assert (said["samples"], said["method"]) == (29, "bootstrap")
    assert abs(seen[0]) > 0.5
    assert seen[0] == pytest.approx(seen[1], abs=0.05)


@pytest.mark.exhaustive
def test_without_a_metric_nothing_is_said_of_one(tmp_path: Path) -> None:
    assert tuned(tmp_path, images(4))[1]["metric_statement"] is None


@pytest.mark.parametrize("target", ["null", "ort-cpu"])
@pytest.mark.matrix
def test_a_silent_output_is_named_and_left_out(tmp_path: Path, target: str) -> None:
    """Detections that are never there, beside scores: by hand, a Relu of what is always negative."""
    b = Builder()
    y = b.conv("a", b.input("x", (1, 3, 12, 12)), 8, relu=True)
    b.output(b.conv("scores", y, 4))
    below = b.node("below", "Sub", [b.node("flat", "Neg", [y]), b.constant("one", np.array(1.0))])
    b.output(b.node("boxes", "Relu", [below]))
    onnx.save(b.model(), path := tmp_path / "m.onnx")
    options: dict[str, Any] = {"target": target, "strategy": "anchors", "augment": "none", "budget": 15}
    result = inlay.tune(path, data=images(4), out=tmp_path / "out", **options)
    best = json.loads((tmp_path / "out" / "result.json").read_text())["best"]
    (silent,) = best["silent_outputs"]
    assert silent.startswith("boxes")
    assert silent not in [o["name"] for o in best["outputs"]]
    note = f"constant on these samples: {silent};"
    assert note in "\n".join(map(str, render.verdict(result)))


@pytest.mark.exhaustive
def test_quantize_judges_all_samples_and_warns(tmp_path: Path) -> None:
    """One figure for the samples that were given; below the bound it says what to do."""
    data = images(6, loud=5)
    for least, warned in ((200.0, True), (1.0, False)):
        done = inlay.quantize(model(tmp_path), tmp_path / "q.onnx", data=data, recipe="full-int8", min_sqnr=least)
        assert done.accuracy is not None
        text = "\n".join(quantized.quantized(done))
        assert f"over 6 given samples together: {done.accuracy.sqnr_db:.1f} dB" in text
        assert ("WARNING: this is below 200 dB. inlay tune" in text) == warned


def test_the_fastest_is_delivered_where_a_metric_is_bounded_that_does_not_count_hits(tmp_path: Path) -> None:
    """Its limit on new samples is known of all that may be delivered: else the most accurate of them would be."""
    options: dict[str, Any] = {"metric": "cosine", "max_drop": 0.2, "min_sqnr": None, "max_measurements": 30}
    result, best = tuned(tmp_path, images(60), 5, **options)
    assert best["metric_statement"]["most_drop"] < 0.2
    found = json.loads((tmp_path / "out" / "result.json").read_text())["pareto"]
    assert best["speedup"] >= 0.98 * max(each["speedup"] for each in found)
    assert [each for each in found if each["speedup"] > 1.1 and each["sqnr_db"] != best["sqnr_db"]], "there is a choice"
    assert not [note for note in result.notes if "is not shown" in note]
