"""What a detector finds, and how much of it another one finds, too: by overlap (IoU) and class, behind suppression.

A detection has a score of :data:`LEAST_SCORE`, and no better one of its class overlaps it by half (NMS). Another model
keeps it where it has one of the same class there, with that score, that overlaps it by half; each stands for one only.
Where boxes are offsets from anchors that only the decoder behind the model knows, what is compared is the class and the
score of each anchor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.quant.metrics import Agreement, Outputs
from inlay.quant.tasks.layouts import Layout

LEAST_SCORE, LEAST_OVERLAP = 0.25, 0.5
_MOST = 1000  # candidates of one image, the best first: a model that finds noise everywhere


@dataclass(frozen=True, eq=False)
class Found:
    """Detections in one image, the best first."""

    boxes: np.ndarray  # corners, shape (n, 4); of anchors that cannot be decoded, their numbers, shape (n, 1)
    labels: np.ndarray  # classes, shape (n,)
    rows: np.ndarray  # where they stand among the rows of the outputs, shape (n,)

    def __len__(self) -> int:
        return len(self.rows)


def detections(layout: Layout, outputs: Outputs, least: float = LEAST_SCORE) -> list[Found]:
    """What a detector's outputs say, image by image; nothing where they are not as ``layout`` has them."""
    boxes, scores = layout.boxes.of(outputs), layout.scores.of(outputs)
    thing = None if layout.thing is None else layout.thing.of(outputs)
    labels = None if layout.labels is None else layout.labels.of(outputs)
    if boxes is None or scores is None or boxes.shape[:2] != scores.shape[:2]:
        return []
    if layout.labels is not None and (labels is None or labels.shape[:2] != boxes.shape[:2]):
        return []
    scores = _shares(scores, layout.raw) * (1.0 if thing is None else _shares(thing, layout.raw))
    if layout.background is not None:
        scores = scores.copy()
        scores[..., layout.background] = 0.0
    classes = scores.argmax(axis=-1) if labels is None else labels[..., 0].astype(np.int64)
    best = np.nan_to_num(scores.max(axis=-1), nan=0.0)
    return [_of_image(layout, *each, least) for each in zip(boxes, best, classes, strict=True)]


def _of_image(layout: Layout, boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray, least: float) -> Found:
    rows = np.flatnonzero(scores >= least)
    rows = rows[np.argsort(-scores[rows], kind="stable")][:_MOST]
    if layout.form == "offsets":
        return Found(rows[:, None], labels[rows], rows)
    corners = _corners(layout, boxes[rows].astype(np.float64), rows)
    if not layout.found:
        kept = _suppressed(corners, labels[rows])
        rows, corners = rows[kept], corners[kept]
    return Found(corners, labels[rows], rows)


def _shares(scores: np.ndarray, raw: bool) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(scores.astype(np.float64), -60.0, 60.0))) if raw else scores


def _corners(layout: Layout, boxes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    if layout.form == "corners":
        return boxes
    centers, sizes = boxes[:, :2], boxes[:, 2:]
    if layout.grid is not None:
        cells = layout.grid[rows]
        centers = (centers + cells[:, :2]) * cells[:, 2:]
        sizes = np.exp(np.clip(sizes, -20.0, 20.0)) * cells[:, 2:]
    return np.concatenate([centers - sizes / 2.0, centers + sizes / 2.0], axis=1)


def overlaps(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes by their corners, shapes (n, 4) and (m, 4), as (n, m)."""
    low = np.maximum(ours[:, None, :2], theirs[None, :, :2])
    high = np.minimum(ours[:, None, 2:], theirs[None, :, 2:])
    both = np.prod(np.maximum(high - low, 0.0), axis=2)
    sizes = [np.prod(np.maximum(b[:, 2:] - b[:, :2], 0.0), axis=1) for b in (ours, theirs)]
    return np.asarray(both / np.maximum(sizes[0][:, None] + sizes[1][None] - both, 1e-12))


def _suppressed(corners: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Indices that remain of boxes that are sorted by score."""
    kept = list[int]()
    gone = np.zeros(len(corners), bool)
    for i in range(len(corners)):
        if gone[i]:
            continue
        kept.append(i)
        gone |= (labels == labels[i]) & (overlaps(corners[i : i + 1], corners)[0] > LEAST_OVERLAP)
    return np.array(kept, np.int64)


def matches(ours: Found, theirs: Found) -> np.ndarray:
    """For each of ours, the index of the one of theirs that stands for it, or -1; shape (n,)."""
    found = np.full(len(ours), -1)
    if not len(ours) or not len(theirs):
        return found
    by_anchor = ours.boxes.shape[1] == 1
    alike = (ours.boxes == theirs.boxes.T).astype(float) if by_anchor else overlaps(ours.boxes, theirs.boxes)
    alike[ours.labels[:, None] != theirs.labels[None]] = 0.0
    for i in range(len(ours)):
        best = int(alike[i].argmax())
        if alike[i, best] >= LEAST_OVERLAP:
            found[i] = best
            alike[:, best] = 0.0
    return found


def _counted(layout: Layout, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> tuple[int, int, int]:
    """Detections of ``reference`` that are found, all of them, and all of ``outputs``."""
    same = ours = theirs = 0
    for got, want in zip(outputs, reference, strict=True):
        wanted, found = detections(layout, want), detections(layout, got)
        ours += sum(map(len, wanted))
        theirs += sum(map(len, found))
        for one, other in zip(wanted, found, strict=False):
            same += int(np.count_nonzero(matches(one, other) >= 0))
    return same, ours, theirs


def kept(layout: Layout) -> Agreement:
    """The share of the float model's detections that another one has (recall)."""

    def counts(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> tuple[int, int]:
        same, ours, _ = _counted(layout, outputs, reference)
        return same, ours

    return Agreement.of_counts(counts)


def shared(layout: Layout) -> Agreement:
    """The share of another model's detections that the float model has (precision)."""

    def counts(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> tuple[int, int]:
        same, _, theirs = _counted(layout, outputs, reference)
        return same, theirs

    return Agreement.of_counts(counts)


def aligned(layout: Layout, want: Outputs, got: Outputs) -> Outputs:
    """``got`` with its rows in the order of those of ``want`` that they stand for; with these where there is none.

    What is missing or too much is for the counts to say: it has no SQNR.
    """
    wanted, found = detections(layout, want, 0.0), detections(layout, got, 0.0)
    if len(wanted) != 1 or len(found) != 1:
        return got
    pairs = matches(wanted[0], found[0])
    to, source = wanted[0].rows[pairs >= 0], found[0].rows[pairs[pairs >= 0]]
    moved = dict(got)
    for place in {layout.boxes, layout.scores, layout.labels} - {None}:
        assert place is not None
        theirs, ours = got[place.output], want[place.output]
        axis = theirs.ndim - 1 if place.axis is None else theirs.ndim - 2
        rows = np.moveaxis(ours.copy(), axis, 0)
        rows[to] = np.moveaxis(theirs, axis, 0)[source]
        moved[place.output] = np.moveaxis(rows, 0, axis)
    return moved
