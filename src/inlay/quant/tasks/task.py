"""Tasks by name: what is told of each, and how much of it may be lost before a delivered model is below its bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from inlay.quant.bound import Bound
from inlay.quant.metrics import AGREEMENTS, Agreement, Outputs
from inlay.quant.tasks import detections, maps, sequences, vectors
from inlay.quant.tasks.layouts import Layout
from inlay.trial import TaskFigure, floored, plain

MOST_LOST: Mapping[str, float] = {
    "detector": 0.05,
    "classifier": 0.03,
    "text": 0.02,
    "tokens": 0.03,
    "embedding": 0.02,
    "masks": 0.05,
    "sound": 3.0,
}
"""By task, what its figures may lose: shares of detections (recall and precision), of samples with the same class, of
symbols, of tokens, of the cosine, of the mean IoU; and dB of the log-spectral distance."""
LEAST_DB: Mapping[str, float] = {"embedding": 14.0}
"""By task, the SQNR in place of the usual one, where nobody asked for any: its figures are the better judge then. Of
vectors of one length, 14 dB are a cosine of 0.98."""
MOST_MOVED, MOVED_OF = 0.05, 12
"""What the rank correlation of similarities may lose, and of how many vectors: of fewer, near ties decide."""


@dataclass(frozen=True, eq=False)
class Figure:
    """One thing that is told of a task."""

    name: str  # of the figure, as of a metric
    agreement: Agreement  # computes it
    words: Callable[[float, float], str]  # for people: of `value` and `lost` as percentages or as they are
    most: float | None = None  # what may be lost, or None
    of_many: int = 0  # so many samples, at least, must be judged for that

    def of(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> TaskFigure | None:
        """The figure of ``outputs``; None where there is nothing to tell."""
        right, of = self.agreement.counts(outputs, reference) if self.agreement.counts is not None else (0, 0)
        if self.agreement.hits is not None:
            hits = self.agreement.hits(outputs, reference)
            right, of = int(np.count_nonzero(hits)), hits.size
        if self.agreement.counts is not None and not of:
            return None
        value = right / of if of else self.agreement.of(outputs, reference)
        if not np.isfinite(value):
            return None
        lost = max(0.0, (0.0 if self.name == LSD else 1.0) - value)
        counted = f" ({right} of {of})" if of else ""
        most = self.most if len(outputs) >= self.of_many else None
        return TaskFigure(self.name, value, lost, most, right, of, self.words(value, lost) + counted)


LSD = "log-spectral-distance"


@dataclass(frozen=True, eq=False)
class Task:
    """What a model is for."""

    name: str  # as `--task` takes it
    looks: str  # for people, with an article
    figures: tuple[Figure, ...]  # what is told, the most important first
    binds: bool = False  # a model that loses more than a figure allows does not keep the bound
    # of a detector, by which rows of what was found are brought into the float model's order
    layout: Layout | None = None
    # the same figures of the float model itself, by name, where its inputs have 1 % of noise, which nobody would
    # notice, each with what is shown to be lost so; asked only where too much is lost
    noisy: Callable[[], Mapping[str, TaskFigure]] | None = None

    @property
    def finds_rows(self) -> bool:
        """Whether outputs are rows of what was found, in any order and number."""
        return self.layout is not None and self.layout.found

    @property
    def least_db(self) -> float | None:
        """SQNR in place of the usual one; None where that stays."""
        return LEAST_DB.get(self.name)

    def usual(self, bound: Bound) -> Bound:
        """``bound``, or this task's own in place of the usual SQNR where nobody asked for any and it judges better."""
        if not bound.is_usual or self.least_db is None:
            return bound
        kept = " and ".join(f"{figure.most:g} of {figure.name}" for figure in self.figures if figure.most is not None)
        return replace(bound, min_sqnr_db=self.least_db, in_task=f"at most {kept} lost ({self.looks})")

    def bound(self, binds: bool) -> Task:
        """The same where its figures count, or are only told."""
        return replace(self, binds=binds)

    def told(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> tuple[TaskFigure, ...]:
        """All figures of ``outputs``. As much may be lost as float itself loses by 1 % of noise."""
        each = (figure.of(outputs, reference) for figure in self.figures)
        found = tuple(figure for figure in each if figure is not None)
        if self.noisy is None or not any(figure.broken for figure in found):
            return found
        own = self.noisy()
        return tuple(_beside(figure, own[figure.name]) if figure.name in own else figure for figure in found)

    def aligned(self, want: Outputs, got: Outputs) -> Outputs:
        """``got`` with rows of what was found in the order of ``want``."""
        return detections.aligned(self.layout, want, got) if self.layout is not None and self.layout.found else got


def _beside(figure: TaskFigure, own: TaskFigure) -> TaskFigure:
    """``figure`` where as much may be lost as the float model itself loses by 1 % of noise in its inputs."""
    if figure.most is None or own.lost <= figure.most:
        return figure
    return replace(figure, most=own.lost, said=f"{figure.said} (float itself with 1 % of noise: {plain(own.value, 4)})")


def broken(figures: Sequence[TaskFigure], beside: Sequence[TaskFigure] = ()) -> str:
    """What of a task is lost, and how much may be; empty where that is kept.

    Args:
        figures: of a model.
        beside: of one that it is to be as good as: what that loses may be lost as well.
    """
    lost = {figure.name: figure.lost for figure in beside}
    for figure in figures:
        if figure.broken and figure.most is not None and figure.lost > lost.get(figure.name, 0.0):
            allowed = f"{plain(figure.most)} dB" if figure.name == LSD else f"{plain(100 * figure.most)} %"
            return f"more than {allowed} of {figure.name} is lost: {figure.said}"
    return ""


def detector(layout: Layout) -> Task:
    """One whose outputs are read as ``layout`` says."""
    most = MOST_LOST["detector"]
    figures = (
        Figure("detections kept", detections.kept(layout), _share("of float's detections kept"), most),
        Figure("detections shared", detections.shared(layout), _share("of its own are float's"), most),
    )
    offsets = " whose boxes are offsets, so that anchors are compared" if layout.form == "offsets" else ""
    return Task("detector", f"a detector{offsets}", figures, layout=layout)


def classifier(classes: int) -> Task:
    """One of so many classes."""
    top1 = Figure(
        "top1-agreement", AGREEMENTS["top1-agreement"], _share("top-1 agreement with float"), MOST_LOST["classifier"]
    )
    top5 = Figure("top5-agreement", AGREEMENTS["top5-agreement"], _share("have float's class among their first five"))
    return Task("classifier", "a classifier", (top1, top5) if classes >= 10 else (top1,))


def text(output: str, time_axis: int, blank: int) -> Task:
    """A recognizer of text, or speech, by CTC."""
    words = _error("text error against float's")
    figure = Figure("text kept", sequences.ctc(output, time_axis, blank), words, MOST_LOST["text"])
    return Task("text", "a recognizer of text (CTC)", (figure,))


def tokens(output: str, written: bool) -> Task:
    """A model of tokens: by scores of each position, or by those that are ``written``."""
    if written:
        agreement, words = sequences.token_edits(output), _error("of tokens differ from float's")
    else:
        agreement, words = AGREEMENTS["token-agreement"], _share("of positions choose float's token")
    return Task("tokens", "a model of tokens", (Figure("token-agreement", agreement, words, MOST_LOST["tokens"]),))


def embedding(output: str) -> Task:
    """A model whose output is a vector for what it is given."""
    figures = (
        Figure(
            "cosine",
            AGREEMENTS["cosine"],
            lambda value, _: f"mean cosine {value:.4f} to float's",
            MOST_LOST["embedding"],
        ),
        Figure(
            "rank correlation",
            vectors.rank_correlation(output),
            lambda value, _: f"rank correlation {value:.4f}",
            MOST_MOVED,
            MOVED_OF,
        ),
    )
    return Task("embedding", "an embedding", figures)


def masks(classes: Callable[[np.ndarray], np.ndarray], outputs: Sequence[str], count: int) -> Task:
    """A model that says of each pixel, or frame, what it belongs to."""
    iou = maps.mask_iou(classes, outputs, count)
    words: Callable[[float, float], str] = lambda value, _: f"mean IoU {value:.4f} with float's masks"  # noqa: E731
    return Task("masks", "a model of masks", (Figure("mask-iou", iou, words, MOST_LOST["masks"]),))


def sound(outputs: Sequence[str]) -> Task:
    """A synthesizer, or whatever gives sound."""
    words: Callable[[float, float], str] = lambda _, lost: f"log-spectral distance {lost:.2f} dB"  # noqa: E731
    return Task(
        "sound", "a model of sound", (Figure(LSD, maps.log_spectral_distance(outputs), words, MOST_LOST["sound"]),)
    )


def _share(of: str) -> Callable[[float, float], str]:
    return lambda value, _: f"{floored(value)} % {of}"


def _error(of: str) -> Callable[[float, float], str]:
    return lambda _, lost: f"{abs(np.ceil(1e4 * lost - 1e-9)) / 100:.2f} % {of}"
