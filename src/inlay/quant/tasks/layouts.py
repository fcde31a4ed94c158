"""Where a detector's outputs hold boxes, scores and classes: by what is joined there, by shapes, values and names.

Three forms are known: one output that joins boxes with scores (and, between or before them, with one score for the
object, and behind them with what else an anchor has: mask coefficients, key points, an angle), an output of boxes
beside one of scores, and the rows of what was found already, behind a NonMaxSuppression or a TopK. Where boxes are not
boxes yet but offsets from anchors, only those of a grid (YOLOX) can be decoded; others are compared anchor by anchor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from inlay.data import Ends, Feed, Joins, Samples
from inlay.quant.metrics import Outputs

Form = Literal["corners", "centers", "grid", "offsets"]
"""What four numbers are: two corners; center and size; the same in cells of a grid; something that needs anchors."""

_LEAST_ANCHORS = 16
_STRIDES = ((8, 16, 32), (8, 16, 32, 64))
_TRUE = 0.999  # of all anchors: rounding may turn a few boxes over
_BOXES = re.compile(r"box|bbox|loc|reg", re.I)
_SCORES = re.compile(r"score|cls|class|conf|prob", re.I)
_LABELS = re.compile(r"label|class|cls", re.I)


@dataclass(frozen=True)
class Place:
    """Some indices of one axis of an output, whose other axes count images, where there are three or more, and rows."""

    output: str  # its name
    axis: int | None  # that is divided; None where the output has one number for each row
    # start, stop: of the indices
    start: int = 0
    stop: int | None = None

    def of(self, outputs: Outputs) -> np.ndarray | None:
        """What is there, shape (images, rows, indices); None where the output has no such indices."""
        array = outputs.get(self.output)
        if array is None:
            return None
        if self.axis is None:
            part = array[..., None]
        elif array.ndim <= self.axis or array.shape[self.axis] < (self.stop or 0):
            return None
        else:
            part = np.moveaxis(array, self.axis, -1)[..., self.start : self.stop]
        part = part[None] if part.ndim == 2 else part
        return part.reshape(part.shape[0], -1, part.shape[-1]) if part.ndim > 2 and part.shape[0] else None


@dataclass(frozen=True)
class Layout:
    """How a detector's outputs are to be read."""

    boxes: Place  # four numbers each
    scores: Place  # one for each class, or one
    thing: Place | None = None  # a score that the others are multiplied by, or None
    # an output of class numbers, one for each row, or None: the class is that of the largest score
    labels: Place | None = None
    form: Form = "offsets"  # of boxes
    raw: bool = False  # scores are those before a sigmoid
    background: int | None = None  # the class that stands for nothing found, or None
    # for boxes of a grid: x and y of each anchor's cell, and its stride, shape (anchors, 3)
    grid: np.ndarray | None = None
    found: bool = False  # rows are what is found, not anchors


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known of a model beside its outputs."""

    ends: Ends  # what it computes them with
    joins: Joins  # what it joins into them
    feeds: Sequence[Feed]  # samples

    @classmethod
    def of(cls, samples: Samples) -> Facts:
        """What samples of a model know of it."""
        return cls(samples.ends, samples.joins, samples.feeds)

    @property
    def image(self) -> tuple[int, int] | None:
        """Height and width of the image that is the model's input; None where there is none."""
        for array in self.feeds[0].values() if self.feeds else ():
            if array.ndim == 4 and min(array.shape[1], array.shape[3]) <= 4:
                return (array.shape[2], array.shape[3]) if array.shape[1] <= 4 else (array.shape[1], array.shape[2])
        return None


def layout_of(reference: Sequence[Outputs], facts: Facts, sure: bool = True) -> Layout | None:
    """How the outputs of a detector are to be read; None where they are none of a detector, as far as can be seen.

    Args:
        reference: the float model's outputs, one mapping for each sample.
        facts: of the model.
        sure: raw scores, and boxes and scores that only their shapes tell, are not taken for such.
    """
    if not reference:
        return None
    floats = [n for n, y in reference[0].items() if y.dtype.kind == "f"]
    for certain in (True,) if sure else (True, False):
        for layout in _possible(reference, facts, floats, certain):
            done = _read(layout, reference, facts, certain)
            if done is not None:
                return done
    return None


def _possible(reference: Sequence[Outputs], facts: Facts, floats: Sequence[str], sure: bool) -> Iterator[Layout]:
    found = _rows_found(reference, facts, floats)
    if found is not None:
        yield found
    yield from _joined(facts.joins, floats, reference)
    beside = _beside(facts, floats, reference, sure)
    if beside is not None:
        yield beside


def _read(layout: Layout, reference: Sequence[Outputs], facts: Facts, sure: bool) -> Layout | None:
    """``layout`` with what only values tell; None where they are not those of a detector."""
    if layout.found:
        return layout
    scores = [s for y in reference if (s := layout.scores.of(y)) is not None]
    boxes = [b for y in reference if (b := layout.boxes.of(y)) is not None]
    if len(scores) < len(reference) or len(boxes) < len(reference) or len({s.shape[-1] for s in scores}) > 1:
        return None
    pairs = [(b, s) for b, s in zip(boxes, scores, strict=True) if b.size and s.size]
    if not pairs:
        return None
    boxes, scores = [b for b, _ in pairs], [s for _, s in pairs]
    low, high = min(float(s.min()) for s in scores), max(float(s.max()) for s in scores)
    raw = low < -1e-3 or high > 1.0 + 1e-3
    if raw and sure:
        return None
    layout = replace(layout, raw=raw, background=None if raw or layout.thing else _background(scores))
    if layout.background is not None and scores[0].shape[-1] < 2:
        return None
    form = _form(boxes)
    if form != "offsets" or facts.image is None:
        return replace(layout, form=form)
    grid = _grid(facts.image, boxes[0].shape[1])
    return replace(layout, form="offsets" if grid is None else "grid", grid=grid)


def _form(boxes: Sequence[np.ndarray]) -> Form:
    """What four numbers are, by all anchors of all samples."""
    flat = np.concatenate([b.reshape(-1, 4) for b in boxes])
    flat = flat[np.isfinite(flat).all(axis=1)]
    if not len(flat) or (flat[:, 2:] < 0.0).mean() > 1.0 - _TRUE:
        return "offsets" if not len(flat) or _ordered(flat) < _TRUE else "corners"
    if _ordered(flat) >= _TRUE:
        return "corners"
    inside = (flat[:, :2] > -0.5 * flat[:, 2:].max()).mean()
    return "centers" if inside >= _TRUE else "offsets"


def _ordered(boxes: np.ndarray) -> float:
    return float(((boxes[:, 2] >= boxes[:, 0]) & (boxes[:, 3] >= boxes[:, 1])).mean())


def _grid(image: tuple[int, int], anchors: int) -> np.ndarray | None:
    """Cells and strides, where there is one anchor for each cell of a pyramid of grids."""
    for strides in _STRIDES:
        sides = [(-(-image[0] // s), -(-image[1] // s)) for s in strides]
        if sum(h * w for h, w in sides) == anchors:
            cells = []
            for (h, w), stride in zip(sides, strides, strict=True):
                y, x = np.mgrid[:h, :w].reshape(2, -1)
                cells.append(np.stack([x, y, np.full(h * w, stride)], axis=1))
            return np.asarray(np.concatenate(cells), np.float64)
    return None


def _background(scores: Sequence[np.ndarray]) -> int | None:
    """The class that most anchors have where classes exclude each other; None where they do not."""
    flat = np.concatenate([s.reshape(-1, s.shape[-1]) for s in scores])
    if flat.shape[1] < 2 or np.abs(flat.sum(axis=1) - 1.0).max() > 1e-2:
        return None
    return int(np.bincount(flat.argmax(axis=1), minlength=flat.shape[1]).argmax())


def _joined(joins: Joins, floats: Sequence[str], reference: Sequence[Outputs]) -> Iterator[Layout]:
    """One output that joins boxes with scores. What stands behind these is none, so that boxes must look like boxes."""
    for name in floats:
        for axis, numbers in enumerate(joins.get(name, ())):
            if not axis or numbers is None or reference[0][name].ndim < 3 or not reference[0][name].size:
                continue
            ends = [0, *np.flatnonzero(np.diff(numbers)) + 1, len(numbers)]
            sizes = [int(stop - start) for start, stop in pairwise(ends)]
            last = axis == reference[0][name].ndim - 1
            anchors = reference[0][name][0].size // max(1, len(numbers))
            for found in _places(name, axis, sizes, last) if anchors >= _LEAST_ANCHORS else ():
                boxes = [b for y in reference if (b := found.boxes.of(y)) is not None and b.size]
                if found.scores.stop == len(numbers) or (boxes and _form(boxes) != "offsets"):
                    yield found


def _places(name: str, axis: int, sizes: Sequence[int], last: bool) -> Iterator[Layout]:
    """Where boxes and scores may stand among joined values of these sizes."""
    if tuple(sizes[:2]) == (2, 2):
        sizes = [4, *sizes[2:]]
        if last and len(sizes) > 1 and sizes[1] > 1:  # as YOLOv5 has them: the object's score before the classes'
            sizes = [4, 1, sizes[1] - 1, *sizes[2:]]
    match sizes:
        case [4, 1, classes, *_]:
            yield Layout(Place(name, axis, 0, 4), Place(name, axis, 5, 5 + classes), Place(name, axis, 4, 5))
        case [1, 4, classes]:
            yield Layout(Place(name, axis, 1, 5), Place(name, axis, 5, 5 + classes), Place(name, axis, 0, 1))
    match sizes:
        case [4, classes, *_]:
            yield Layout(Place(name, axis, 0, 4), Place(name, axis, 4, 4 + classes))


def _beside(facts: Facts, floats: Sequence[str], reference: Sequence[Outputs], sure: bool) -> Layout | None:
    """An output of boxes beside one of scores."""
    first = reference[0]
    pairs = []
    for boxes in floats:
        for scores in floats:
            axes = (first[boxes].ndim - 1, first[scores].ndim - 1)
            for axis in {axes[0], 1} if axes[0] == axes[1] == 2 and boxes != scores else ():
                places = Place(boxes, axis, 0, None), Place(scores, axis, 0, None)
                b, s = (p.of(first) for p in places)
                if b is None or s is None or b.shape[-1] != 4 or b.shape[:2] != s.shape[:2]:
                    continue
                named = bool(_BOXES.search(boxes)) and bool(_SCORES.search(scores))
                if b.shape[1] >= _LEAST_ANCHORS and (named or s.shape[-1] != 4):
                    pairs.append((named, Layout(replace(places[0], stop=4), places[1])))
    told = [layout for named, layout in pairs if named] or [layout for _, layout in pairs]
    if len(told) != 1:
        return None
    layout = told[0]
    if any(named for named, _ in pairs) or not sure:
        return layout
    ends = facts.ends.computed.get(layout.scores.output, frozenset())
    decoded = _form([b for y in reference if (b := layout.boxes.of(y)) is not None]) != "offsets"
    return layout if decoded and ends <= {"Sigmoid", "Softmax"} and ends else None


def _rows_found(reference: Sequence[Outputs], facts: Facts, floats: Sequence[str]) -> Layout | None:
    """The rows of what was found already."""
    chosen = facts.ends.operators & {"NonMaxSuppression", "TopK", "EfficientNMS_TRT", "BatchedNMS_TRT"}
    first = reference[0]
    if not chosen:
        return None
    for name in floats:
        width = first[name].shape[-1] if first[name].ndim in (2, 3) else 0
        if width not in (6, 7):
            continue
        each = [y[name].reshape(-1, width) for y in reference if y[name].ndim and y[name].shape[-1] == width]
        if len(each) == len(reference):
            shift = width - 6  # before a row of 7 stands the image's number
            rows = np.concatenate(each)[:, shift:]
            axis = first[name].ndim - 1
            for score, label in ((4, 5), (5, 4)) if _whole(rows[:, :4]) < 1.0 and len(rows) else ():
                if _is_share(rows[:, score]) and _whole(rows[:, label]) == 1.0 and _ordered(rows[:, :4]) >= _TRUE:
                    at = {p: Place(name, axis, shift + p, shift + p + 1) for p in (score, label)}
                    boxes = Place(name, axis, shift, shift + 4)
                    return Layout(boxes, at[score], labels=at[label], form="corners", found=True)
    return _columns(reference, floats)


def _columns(reference: Sequence[Outputs], floats: Sequence[str]) -> Layout | None:
    """Boxes, scores and classes of what was found, in an output each."""
    first = reference[0]
    for boxes in (n for n in floats if first[n].ndim in (2, 3) and first[n].shape[-1] == 4):
        count, ndim = first[boxes].shape[:-1], first[boxes].ndim
        scores = [n for n in floats if n != boxes and first[n].shape == count and _all(reference, n, _is_share)]
        scores = [n for n in scores if len(scores) == 1 or _SCORES.search(n)]
        if len(scores) != 1 or any(y[boxes].shape[-1:] != (4,) for y in reference):
            continue
        if _ordered(np.concatenate([y[boxes].reshape(-1, 4) for y in reference])) < _TRUE:
            continue
        labels = [n for n, y in first.items() if n not in (boxes, *scores) and y.shape == count]
        labels = [n for n in labels if _all(reference, n, lambda column: _whole(column) == 1.0)]
        labels = [n for n in labels if len(labels) == 1 or _LABELS.search(n)]
        if len(labels) > 1:
            continue
        where = Place(labels[0], None) if labels else None
        return Layout(Place(boxes, ndim - 1, 0, 4), Place(scores[0], None), labels=where, form="corners", found=True)
    return None


def _all(reference: Sequence[Mapping[str, np.ndarray]], name: str, test: Callable[[np.ndarray], bool]) -> bool:
    column = np.concatenate([y[name].ravel() for y in reference])
    return bool(column.size) and test(column)


def _is_share(numbers: np.ndarray) -> bool:
    return bool(numbers.size and numbers.min() >= 0.0 and numbers.max() <= 1.0 + 1e-6)


def _whole(numbers: np.ndarray) -> float:
    return float((numbers == np.round(numbers)).mean()) if numbers.size else 1.0
