"""What models look like by their outputs, and how far others do the same: known models, and what must not be taken."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from inlay.data import Ends, Samples
from inlay.errors import UsageError
from inlay.model.joins import joined
from inlay.model.load import load
from inlay.quant.accuracy import Bound, Judge
from inlay.quant.metrics import Outputs
from inlay.quant.tasks.detections import detections, matches
from inlay.quant.tasks.layouts import Facts
from inlay.quant.tasks.recognize import CHOICES, recognized
from inlay.quant.tasks.sequences import decoded, edits
from inlay.quant.tasks.task import Task, broken, text
from inlay.trial import TaskFigure
from tests.support.detectors import MAKES, Make, detector, images, overlap
from tests.support.detectors import detections as plain_detections

REAL: Mapping[str, str] = {
    "basic_pitch": "masks",
    "deeplab_v3_mnv2": "masks",
    "fastestdet": "detector",
    "g2p_bert": "tokens",
    "mnist": "classifier",
    "nnsplit_en": "",
    "ppocr_cls": "classifier",
    "stm_mbv2_flowers": "classifier",
    "ultraface_rfb320_simplified": "detector",
    "yolox_nano": "detector",
}
"""What is recognized of each trained model. Of nnsplit nothing: its two numbers a byte are no classes."""


def facts(path: Path, feeds: Sequence[dict[str, np.ndarray]]) -> Facts:
    return Facts.of(joined(Samples(tuple(feeds), "feeds", "test"), load(path).model))


def runs(path: Path) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(names, feed), strict=True))


def found(
    reference: list[dict[str, np.ndarray]], computed: str = "", feeds: Sequence[Any] = (), wanted: str = "auto"
) -> Task | None:
    """The task of outputs that ``computed``, one operator, computes."""
    ends = Ends({name: frozenset({computed} if computed else ()) for name in reference[0]}, frozenset({computed}))
    return recognized(reference, Facts(ends, {}, feeds), wanted)


def noisy(reference: Sequence[Outputs], db: float, seed: int = 9) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)

    def of(y: np.ndarray) -> np.ndarray:
        return np.asarray(y + rng.normal(0.0, np.sqrt(np.square(y).mean() * 10 ** (-db / 10)), y.shape), y.dtype)

    return [{name: of(y) for name, y in each.items()} for each in reference]


# --- trained models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_trained_models_are_what_they_are(name: str, real_models: Path) -> None:
    some = importlib.import_module("feeds").feeds(name)[0][:9]
    path = real_models / f"{name}.onnx"
    reference = [runs(path)(feed) for feed in some]
    task = recognized(reference, facts(path, some))
    assert (task.name if task is not None else "") == REAL[name]
    if task is None:
        return
    same = task.told(reference, reference)
    assert same
    assert all(f.lost == 0.0 and not f.broken for f in same), "negative control: float is float"
    zero = [{n: np.zeros_like(y) for n, y in each.items()} for each in reference]
    assert broken(task.told(zero, reference)), "all that it finds is lost"
    losses = [max(f.lost for f in task.told(noisy(reference, db), reference)) for db in (50.0, 3.0)]
    assert losses[0] <= losses[1] > 0.0


# --- detectors --------------------------------------------------------------------------------------------------------


def outputs_of(make: Make, tmp_path: Path) -> tuple[list[dict[str, np.ndarray]], Facts]:
    path = tmp_path / "m.onnx"
    onnx.save(detector(make), path)
    feeds = [{"images": image[None]} for image in images(6, 1)]
    return [runs(path)(feed) for feed in feeds], facts(path, feeds)


def brute_force(boxes: np.ndarray, scores: np.ndarray) -> list[int]:
    """Rows that remain: the best first, each that no better one of its class overlaps by more than half."""
    labels, best = scores.argmax(axis=1), scores.max(axis=1)
    kept: list[int] = []
    for row in sorted(np.flatnonzero(best >= 0.25), key=lambda i: -best[i]):
        alike = [k for k in kept if labels[k] == labels[row]]
        if (overlap(boxes[row], boxes[alike]) <= 0.5).all():
            kept.append(int(row))
    return kept


@pytest.mark.parametrize("make", MAKES)
def test_detectors_of_any_make_are_read_as_their_decoders_read_them(make: Make, tmp_path: Path) -> None:
    reference, known = outputs_of(make, tmp_path)
    task = recognized(reference, known)
    if make == "raw":
        assert task is None, "scores before a sigmoid might be anything"
        task = recognized(reference, known, "detector")
    assert task is not None
    assert task.name == "detector"
    assert task.layout is not None
    total = 0
    for each in reference:
        (one,) = detections(task.layout, each)
        boxes, scores = plain_detections(make, [*each.values()])
        if task.layout.form == "offsets":
            assert sorted(one.rows) == np.flatnonzero(scores.max(axis=1) >= 0.25).tolist()
        else:
            assert sorted(one.rows) == sorted(brute_force(boxes.astype(float), scores))
        assert (one.labels == scores[one.rows].argmax(axis=1)).all()
        total += len(one)
    assert total >= 5, "the fixture finds something"


@pytest.mark.parametrize("wanted", ["auto", "detector"])
@pytest.mark.parametrize("classes", [5, 1])
def test_what_stands_behind_the_scores_of_an_anchor_is_no_score(classes: int, wanted: str, tmp_path: Path) -> None:
    """Mask coefficients, as YOLO has them for segmentation, beside an output of prototypes; of one class as well, where
    its score is not that of an object that the coefficients are the classes of."""
    model = detector("joined")
    last = model.graph.node[-1]
    boxes, scores = last.input
    made = [helper.make_node("Sin", [boxes], ["coefficients"]), helper.make_node("Tanh", ["images"], ["prototypes"])]
    if classes == 1:
        made.append(helper.make_node("ReduceMax", [scores], ["best"], axes=[1], keepdims=1))
    model.graph.node.pop()
    model.graph.node.extend(made)
    joined = [boxes, "best" if classes == 1 else scores, "coefficients"]
    model.graph.node.append(helper.make_node("Concat", joined, ["out"], axis=1))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 8 + classes
    model.graph.output.append(helper.make_tensor_value_info("prototypes", TensorProto.FLOAT, [1, 3, 96, 96]))
    onnx.save(model, tmp_path / "m.onnx")
    feeds = [{"images": image[None]} for image in images(6, 1)]
    reference = [runs(tmp_path / "m.onnx")(feed) for feed in feeds]
    task = recognized(reference, facts(tmp_path / "m.onnx", feeds), wanted)
    assert task is not None
    assert task.layout is not None
    total = 0
    for each in reference:
        (one,) = detections(task.layout, each)
        rows = each["out"][0].T
        assert sorted(one.rows) == sorted(brute_force(rows[:, :4].astype(float), rows[:, 4 : 4 + classes]))
        total += len(one)
    assert total >= 5, "the fixture finds something"


def test_a_detector_whose_scores_are_gone_keeps_nothing(tmp_path: Path) -> None:
    reference, known = outputs_of("separate", tmp_path)
    task = recognized(reference, known)
    assert task is not None
    gone = [{"boxes": y["boxes"], "scores": np.zeros_like(y["scores"])} for y in reference]
    (kept,) = task.told(gone, reference)
    assert (kept.value, kept.right, kept.broken) == (0.0, 0, True)
    everywhere = [{"boxes": y["boxes"], "scores": np.ones_like(y["scores"])} for y in reference]
    _, shared = task.told(everywhere, reference)
    assert shared.name == "detections shared"
    assert shared.broken, "what finds something everywhere keeps all, and is no detector"


def test_one_near_miss_decides_nothing(tmp_path: Path) -> None:
    reference, known = outputs_of("separate", tmp_path)
    task = recognized(reference, known)
    assert task is not None
    assert task.layout is not None
    rows = [(i, r) for i, y in enumerate(reference) for r in detections(task.layout, y)[0].rows]
    for lost, breaks in ((1, False), (len(rows) // 2, True)):
        other = [{n: y.copy() for n, y in each.items()} for each in reference]
        for i, row in rows[:lost]:
            other[i]["scores"][0, :, row] = 0.0
            boxes = reference[i]["boxes"][0].T  # nor does one beside it take its place
            other[i]["scores"][0, :, overlap(boxes[row], boxes) > 0.4] = 0.0
        assert bool(broken(task.told(other, reference)[:1])) is breaks


def rows_found(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    low = rng.uniform(0, 300, (count, 2))
    boxes = np.concatenate([low, low + rng.uniform(20, 60, (count, 2))], axis=1).astype(np.float32)
    scores = np.sort(rng.uniform(0.3, 1.0, count).astype(np.float32))[::-1]
    return {"dets": boxes, "conf": scores, "labels": rng.integers(0, 4, count)}


def test_what_was_found_is_compared_in_any_order_and_number() -> None:
    """Behind a NonMaxSuppression rows come in the order of their scores, and as many as there are."""
    rng = np.random.default_rng(0)
    reference = [rows_found(rng, n) for n in (7, 12, 9, 11)]
    known = Facts(Ends({}, frozenset({"NonMaxSuppression"})), {}, ({"x": np.zeros((1, 3, 320, 320))},))
    task = recognized(reference, known)
    assert task is not None
    assert task.finds_rows
    judge = Judge(reference, Samples(({},) * 4, "feeds", "test"), Bound(20.0), confidence=None, task=task.bound(True))
    order = [rng.permutation(len(y["conf"])) for y in reference]
    turned = [{n: a[o] for n, a in y.items()} for y, o in zip(reference, order, strict=True)]
    exact = judge.judge(turned)
    assert exact.feasible
    assert exact.sqnr_db > 100.0
    shorter = [{n: a[1:] for n, a in y.items()} if i == 0 else y for i, y in enumerate(turned)]
    found = judge.judge(shorter)
    assert found.feasible, "one of 39 is a near miss"
    assert (found.figures[0].right, found.figures[0].of) == (38, 39)
    assert "output dets has another shape than float's in 1 of 4 samples ([6, 4] in place of [7, 4])" in found.reshaped
    half = [{n: a[: len(a) // 2] for n, a in y.items()} for y in turned]
    assert "detections kept" in judge.judge(half).reason
    none = [{n: a[:0] for n, a in y.items()} for y in turned]
    assert not judge.judge(none).feasible
    alone = Judge(reference, Samples(({},) * 4, "feeds", "test"), Bound(20.0), confidence=None)
    assert not alone.judge(turned).feasible, "negative control: row by row they are others"


def test_each_detection_stands_for_one_only() -> None:
    rng = np.random.default_rng(1)
    reference = [rows_found(rng, 6)]
    task = recognized(reference, Facts(Ends({}, frozenset({"TopK"})), {}, ()))
    assert task is not None
    assert task.layout is not None
    (one,) = detections(task.layout, reference[0])
    twice = {n: np.concatenate([a[:1], a[:1]]) for n, a in reference[0].items()}
    (other,) = detections(task.layout, twice)
    assert np.count_nonzero(matches(one, other) >= 0) == 1


# --- classes, vectors, masks, text, sound -----------------------------------------------------------------------------


def softmax(logits: np.ndarray, axis: int = -1) -> np.ndarray:
    shares = np.exp(logits - logits.max(axis=axis, keepdims=True))
    return np.asarray(shares / shares.sum(axis=axis, keepdims=True), np.float32)


def test_classes_with_and_without_a_softmax() -> None:
    rng = np.random.default_rng(0)
    logits = [rng.normal(0, 4, (1, 12)).astype(np.float32) for _ in range(30)]
    for reference, computed in (
        ([{"out": softmax(y)} for y in logits], "Softmax"),
        ([{"out": y} for y in logits], "Gemm"),
        ([{"logits": y / 100} for y in logits], "MatMul"),
    ):
        task = found(reference, computed)
        assert task is not None
        assert task.name == "classifier"
        others = [{n: y[:, ::-1] for n, y in each.items()} for each in reference]
        top1, top5 = task.told(others, reference)
        assert top1.broken
        assert top1.of == 30
        assert top1.right <= top5.right < 30


@pytest.mark.parametrize(
    ("shape", "computed", "name"),
    [((1, 64), "Gemm", "out"), ((1, 10), "Tanh", "points"), ((1, 1), "Gemm", "score"), ((1, 8, 8), "Conv", "y")],
)
def test_numbers_that_may_be_anything_are_taken_for_nothing(shape: tuple[int, ...], computed: str, name: str) -> None:
    """A random vector is no embedding, and where the mouth is always the largest number, it is no class."""
    rng = np.random.default_rng(0)
    assert found([{name: rng.normal(0, 1, shape).astype(np.float32)} for _ in range(20)], computed) is None
    points = rng.normal([50, 30, 70, 90, 110, 112], 3, (20, 1, 6)).astype(np.float32)
    assert found([{"points": y} for y in points], "Gemm") is None


def test_an_embedding_is_one_by_name_or_by_its_length() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(0, 1, (16, 1, 32)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    for reference in ([{"sentence_embedding": y} for y in vectors], [{"out": y} for y in unit]):
        task = found(reference, "Div")
        assert task is not None
        assert task.name == "embedding"
        angle, rank = task.told(noisy(reference, 30.0), reference)
        assert 0.995 < angle.value < 1.0
        assert 0.9 < rank.value < 1.0
        assert not angle.broken
        assert task.told(noisy(reference, 3.0), reference)[0].broken


def test_masks_are_compared_by_class() -> None:
    rng = np.random.default_rng(0)
    blocks = np.repeat(np.repeat(rng.normal(0, 4, (4, 1, 5, 4, 4)), 8, 3), 8, 4).astype(np.float32)
    reference = [{"masks": softmax(y, 1)} for y in blocks]
    task = found(reference, "Softmax")
    assert task is not None
    assert task.name == "masks"
    moved = [{"masks": np.roll(y["masks"], 2, axis=3)} for y in reference]
    classes = np.concatenate([y["masks"].argmax(axis=1).ravel() for y in reference])
    others = np.concatenate([y["masks"].argmax(axis=1).ravel() for y in moved])
    shares = [
        ((classes == k) & (others == k)).sum() / ((classes == k) | (others == k)).sum()
        for k in range(5)
        if (classes == k).mean() >= 0.01
    ]
    (iou,) = task.told(moved, reference)
    assert iou.value == pytest.approx(np.mean(shares))
    labels = [{"ids": y["masks"].argmax(axis=1)} for y in reference]
    decided = found(labels, "ArgMax")
    assert decided is not None
    assert decided.name == "masks"


@pytest.mark.parametrize("seed", range(3))
def test_edits_are_the_fewest(seed: int) -> None:
    rng = np.random.default_rng(seed)

    @functools.cache
    def least(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(least(a[1:], b[1:]) + (a[0] != b[0]), least(a[1:], b) + 1, least(a, b[1:]) + 1)

    for _ in range(20):
        a, b = (rng.integers(0, 3, rng.integers(0, 9)) for _ in range(2))
        assert edits(a, b) == least(tuple(a.tolist()), tuple(b.tolist()))


def frames_of(text: Sequence[int], rng: np.random.Generator, symbols: int = 12) -> np.ndarray:
    """Scores of frames in which a symbol stands for one or two, and blanks stand between."""
    path = [s for symbol in text for s in (0, 0, *[symbol] * int(rng.integers(1, 3)))] + [0, 0]
    return softmax(8.0 * np.eye(symbols)[path][None] + rng.normal(0, 0.5, (1, len(path), symbols)))


def test_text_is_compared_as_it_is_read() -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 12, 10).tolist() for _ in range(8)]
    reference = [{"out": frames_of(text, rng)} for text in texts]
    assert [decoded(y["out"][0], 0).tolist() for y in reference] == texts
    feeds = [{"image": np.zeros((1, 3, 48, 192), np.float32)}]
    task = found(reference, "Softmax", feeds)
    assert task is not None
    assert task.name == "text"
    again = [{"out": frames_of(text, rng)} for text in texts]
    assert task.told(again, reference)[0].lost == 0.0, "of other lengths, and the same text"
    wrong = [{"out": frames_of(text[:-1], rng)} for text in texts]
    (figure,) = task.told(wrong, reference)
    assert (figure.right, figure.of) == (72, 80)
    assert figure.broken
    tokens = found(reference, "Softmax", [{"ids": np.zeros((1, 30), np.int64)}])
    assert tokens is not None
    assert tokens.name == "tokens", "what reads tokens writes tokens"


def test_tokens_of_other_lengths_are_aligned() -> None:
    reference = [{"output_ids": np.array([[5, 6, 7, 8, 9, 10]])}] * 4
    task = found(reference)
    assert task is not None
    (same,) = task.told([{"output_ids": np.array([[6, 7, 8, 9, 10]])}] * 4, reference)
    assert (same.right, same.of) == (20, 24)
    scores = [{"logits": np.eye(9, dtype=np.float32)[[1, 2, 3, 4]][None]}]
    written = found(scores, "MatMul", [{"ids": np.zeros((1, 4), np.int64)}])
    assert written is not None
    (part,) = written.told([{"logits": scores[0]["logits"][:, :3]}], scores)
    assert part.value == 0.75


def test_sound_is_compared_by_its_spectrum() -> None:
    rng = np.random.default_rng(0)
    t = np.arange(6000) / 16000
    waves = [np.sin(2 * np.pi * f * t) * 0.5 + rng.normal(0, 0.01, t.size) for f in (220, 440, 880)]
    reference = [{"audio": w[None].astype(np.float32)} for w in waves]
    task = found(reference, "Tanh")
    assert task is not None
    assert task.name == "sound"
    (shorter,) = task.told([{"audio": y["audio"][:, :-300]} for y in reference], reference)
    assert shorter.lost == 0.0, "only what both have is compared"
    losses = [task.told(noisy(reference, db), reference)[0].lost for db in (60, 40, 10)]
    assert 0.0 < losses[0] < losses[1] < losses[2]
    assert task.told(noisy(reference, 0.0), reference)[0].broken
    bound = Bound(metric="sound", max_drop=3.0)
    judge = Judge(reference, Samples(({},) * 3, "feeds", "test"), bound, confidence=None, task=task)
    judge.refuse_idle_bound()
    assert judge.judge(noisy(reference, 60.0)).feasible
    assert not judge.judge(noisy(reference, 0.0)).feasible


# --- what the user says -----------------------------------------------------------------------------------------------


def test_a_task_that_is_named_asks_for_less_and_none_for_nothing() -> None:
    rng = np.random.default_rng(0)
    reference = [{"out": rng.normal(0, 1, (1, 64)).astype(np.float32)} for _ in range(6)]
    named = found(reference, "Gemm", wanted="embedding")
    assert named is not None
    assert named.name == "embedding"
    assert found([{"p": softmax(y["out"])} for y in reference], "Softmax", wanted="none") is None
    with pytest.raises(UsageError, match=r"--task detector: boxes of four numbers beside scores are .*out \[1, 64\]"):
        found(reference, "Gemm", wanted="detector")


@pytest.mark.parametrize("seed", range(60))
def test_whatever_outputs_are_nothing_fails(seed: int) -> None:
    """Any outputs, of shapes that vary, judged against any others: a task, or none, or one line for who named one."""
    rng = np.random.default_rng(seed)
    names = rng.choice(["boxes", "scores", "labels", "logits", "audio", "tokens", "out", "embedding"], 3, replace=False)
    kinds = [(int(rng.integers(0, 5)), rng.choice(["f", "u", "i"]), rng.integers(0, 12, 5)) for _ in names]

    def outputs(varies: bool) -> dict[str, np.ndarray]:
        made = {}
        for name, (ndim, kind, sizes) in zip(names[: 1 + seed % 3], kinds, strict=False):
            shape = sizes[:ndim] + (rng.integers(0, 2, ndim) if varies else 0)
            array = rng.normal(0, 1, shape).astype(np.float32) if kind == "f" else rng.random(shape, np.float32)
            made[str(name)] = rng.integers(0, 9, shape) if kind == "i" else np.asarray(array)
        return made

    reference = [outputs(seed % 2 == 0) for _ in range(4)]
    others = [outputs(True) for _ in range(4)]
    computed = str(rng.choice(["MatMul", "Sigmoid", "Softmax", "Tanh", "Conv"]))
    ends = Ends({n: frozenset({computed}) for n in reference[0]}, frozenset({"NonMaxSuppression"}))
    known = Facts(ends, {}, ({"x": np.zeros((1, 3, 32, 32), np.float32)},))
    samples = Samples(({},) * 4, "feeds", "test")
    for wanted in CHOICES:
        try:
            task = recognized(reference, known, wanted)
        except UsageError:
            assert wanted not in ("auto", "none")
            continue
        judge = Judge(reference, samples, Bound(20.0), confidence=None, task=None if task is None else task.bound(True))
        assert judge.judge(reference, in_task=True).feasible or not judge.judge(reference).outputs
        found = judge.judge(others, in_task=True)
        assert all(np.isfinite(figure.value) for figure in found.figures)


def test_ends_are_found_behind_what_moves_elements(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        helper.make_node("Transpose", ["c"], ["t"], perm=[1, 0]),
        helper.make_node("Add", ["t", "one"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 3]), ("y", [6, 2])))
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    graph = helper.make_graph(nodes, "g", [x], [y], [one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    ends = facts(tmp_path / "m.onnx", [{"x": np.zeros((2, 3), np.float32)}]).ends
    assert ends.computed == {"y": frozenset({"Relu", "Sigmoid"})}


def test_nothing_lost_is_no_less_than_nothing() -> None:
    assert text("out", 1, 0).figures[0].words(1.0, 0.0) == "0.00 % text error against float's"


def test_what_another_model_loses_already_may_be_lost_as_well() -> None:
    """A repaired file is to be as good as the given one, not as the float model."""

    def figure(lost: float) -> TaskFigure:
        return TaskFigure("cosine", 1.0 - lost, lost, 0.02, 0, 0, f"{lost:g} lost")

    assert "more than 2 % of cosine is lost: 0.06 lost" in broken([figure(0.06)])
    assert "0.06 lost" in broken([figure(0.06)], [figure(0.05)])
    assert not broken([figure(0.05)], [figure(0.05)])
    assert not broken([figure(0.02)], [figure(0.0)])
