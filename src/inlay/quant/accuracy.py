"""How far a model is from the float model, and whether it keeps the accuracy constraint.

Without labels the measure is the signal-to-quantization-noise ratio: ``10 log10(sum y^2 / sum (y - y')^2)`` for each
output over all samples, in dB; the worst output counts. An output whose parts differ in size is compared part by part
(:mod:`inlay.quant.parts`): each part is an output of its own here. A part that is lost, one number in place of many,
breaks every constraint, also that of a metric, and where there is none: a metric that does not look at it says nothing
of it, and who needs no such output can cut it off the model.

Integer outputs are decisions (classes, indices, masks) rather than amounts: what counts is the share of them that
change, also in dB (20 dB are one in a hundred). Those of 8 and 16 bits are taken for amounts (images, sound). Padding
has no share (:mod:`inlay.data.padding`). With a metric, its drop against the float model counts.

An output that differs from float's in the length of one axis is compared on the common part: what only one of them has
is noise as a whole. Rows of what a detector found are compared with those of float that they stand for, and their
number by the figures of that task (:mod:`inlay.quant.tasks`), which are told beside the SQNR.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from inlay.data import Feed, Padding, Samples
from inlay.errors import DataError, ModelError, UsageError
from inlay.model.joins import joined
from inlay.quant.bound import Bound as Bound
from inlay.quant.metric_limits import Pairs
from inlay.quant.metrics import (
    Agreement,
    changes,
    energies,
    hits_of,
    least_ratio,
    refuse_lone_scores,
    unsure,
    value_of,
)
from inlay.quant.metrics import Metric as Metric
from inlay.quant.metrics import Outputs as Outputs
from inlay.quant.metrics import find_metric as find_metric
from inlay.quant.parts import Parts, lost
from inlay.quant.tasks.task import Task, broken
from inlay.quant.tolerance import MAX_DB, USUAL_WEIGHT, short_db, spread_db
from inlay.trial import Accuracy, OutputError, TaskFigure, counted, plain

JUDGING = "5"
"""Version of the rules by which figures of accuracy come about. Raise it where the same outputs would get others.

1 compared outputs as a whole; 2 compares them part by part where parts differ in size; 3 compares outputs of other
lengths on the common part, and rows of what was found with those that they stand for; 4 compares few probabilities as
log odds, too, and judges an embedding by its task; 5 takes the classes that an output names for those of ``top1``.
"""
MAX_MARGIN_DB = 3.0
"""Half a bit: samples that differ more than this ask for more samples rather than for a larger margin."""
MIN_MARGIN_DB = 2.0
"""Least margin of a single sample; it falls with the square root of their number, like a standard error."""
UNCHECKED, CHECKED_LATER = 0.95, 0.8
"""Confidence of the margin where nothing follows, and where the bound is looked at once more on unseen samples: failing
there costs a look at the next model only. By simulation with the samples of ten models, 8 to 64 given
(``benchmarks/results/coverage.md``), 0.8 lets no more models pass that break the bound on others than 0.95 did with
the apart samples alone, and many more of those that keep it."""
_LOST_DB = 20.0  # with more, what one number stands for differs little
_QUIET = 0.1  # of the mean energy of a part, that it has at least where single samples are compared
EXACT_DB = 300.0  # SQNR of identical outputs: a finite number, so that it can be compared, averaged and written as JSON


class Judge:
    """Compares models with the float model on one part of the samples.

    Args:
        reference: the float model's outputs, one mapping for each sample.
        samples: that part.
        bound: the constraint.
        metric: the metric of ``bound``, or None.
        confidence: that others keep ``bound`` as well, for which a margin is required by how much the samples differ;
            None for no margin.
        apart: so many of the samples, the first ones, had no part in the ranges; the others had, which flatters them
            a little: what counts is the worse of the figures of these and of all. None where there is no difference.
        parts: how outputs are divided, as another judge of the same model found; None to find out.
        task: what the model is for; None where that is not sure.

    Raises:
        ModelError: an output is no tensor.
    """

    def __init__(
        self,
        reference: Sequence[Outputs],
        samples: Samples,
        bound: Bound,
        metric: Metric | None = None,
        confidence: float | None = UNCHECKED,
        apart: int | None = None,
        parts: Parts | None = None,
        task: Task | None = None,
    ) -> None:
        outputs: Mapping[str, object] = reference[0] if reference else {}
        for name, value in outputs.items():
            if not isinstance(value, np.ndarray):
                kind = "sequence" if isinstance(value, list) else type(value).__name__
                raise ModelError(f"the model's output {name} is a {kind}, and only tensors can be compared")
        self.reference = reference
        self._padding = Padding.of(samples.feeds[: len(reference)], reference, samples.mask)
        self._wanted = self._padding.without_each(reference)
        self._labels = samples.labels
        self.bound = bound  # as it was given
        named = task is not None and bound.metric == task.name
        self._metric = task.figures[0].agreement if task is not None and named else metric
        self._confidence = confidence
        self._apart = len(reference) if apart is None else apart
        self.task = task
        self._stated = 0  # samples that a statement on new ones will rest on; 0 where there will be none
        whole = self._padding.outputs
        # how they are divided
        self.parts = Parts.of(self._wanted, samples.joins, whole, samples.ends) if parts is None else parts
        self._divided = [self.parts.split(outputs) for outputs in self._wanted]
        first = self._divided[0] if reference else {}
        # parts and outputs that are left out, since they are one and the same number on all samples
        self.silent = _silent(self._divided)
        self._decisions = frozenset(n for n, y in first.items() if _decides(y.dtype))
        self.float_metric = self._in_float()
        self.remark = ""  # what people should know of the metric; empty for nothing

    @classmethod
    def of_model(cls, model: ir.Model, feeds: Sequence[Feed], reference: Sequence[Outputs], mask: str) -> Judge:
        """What says how far others are from ``model``, whose outputs for ``feeds`` these are, without any bound."""
        samples = joined(Samples(tuple(feeds), "feeds", "samples", mask=mask), model)
        return cls(reference, samples, Bound(), confidence=None)

    def refuse_idle_bound(self) -> None:
        """Raise UsageError where the metric cannot fall, or, as none is negative, only below 0, to break the bound."""
        refuse_lone_scores(self._metric, self._wanted)
        most, value = self.bound.max_drop, self.float_metric
        is_distance = isinstance(self._metric, Agreement) and value == 0.0  # which grows below 0
        if most is not None and value is not None and 0.0 <= value <= most and not is_distance:
            raise UsageError(
                f"--max-drop {most:g} bounds nothing: the float model's {self.bound.metric} is {value:g}; "
                "give less, or check the labels"
            )

    def asked_twice(self) -> Judge:
        """The same with a bound for a metric that changes its mind. Raises DataError; see :func:`unsure`."""
        found = self.bounded(self.bound)
        if self._metric is not None and self.float_metric is not None:
            found.bound, found.remark = unsure(self._metric, self.bound, self.float_metric, self._in_float)
        return found

    def bounded(self, bound: Bound) -> Judge:
        """The same comparison with another constraint, for the same metric."""
        other = copy.copy(self)
        other.bound = bound
        return other

    def stating(self, samples: int) -> Judge:
        """The same comparison where a statement on new samples will rest on so many; 0 where there will be none."""
        other = copy.copy(self)
        other._stated = samples
        return other

    def judge(self, outputs: Sequence[Outputs], in_task: bool = False) -> Accuracy:
        """Accuracy of a model from its ``outputs`` on the same samples.

        Args:
            outputs: of each sample.
            in_task: also in the terms of the model's task, which takes longer; where these bind, in any case.
        """
        errors, margin, each_db = self._errors(self._split(outputs))
        least_db = self.bound.min_sqnr_db
        worst = min(errors, key=lambda e: e.sqnr_db, default=OutputError("", EXACT_DB, 1.0))
        reshaped = self._reshaped(outputs)
        try:
            metric, failure = self._metric_of(outputs), ""
        except DataError as error:
            if not reshaped:
                raise
            metric, failure = None, f"{reshaped}: {error}"  # it takes outputs as float has them
        drop = None if metric is None or self.float_metric is None else self.float_metric - metric
        gone = next((_reason_lost(e) for e in errors if e.lost), "")
        reason = gone or failure or self._reason(worst, margin, reshaped) or self._fall(outputs, drop)
        task, told = self.task, tuple[TaskFigure, ...]()
        if task is not None and (in_task or task.binds):
            told = task.told(self._padding.without_each(outputs), self._wanted)
            reason = reason or (broken(told) if task.binds else "")
        return Accuracy(
            feasible=not reason,
            sqnr_db=worst.sqnr_db,
            outputs=tuple(errors),
            metric=metric,
            drop=drop,
            samples=len(outputs),
            reason=reason,
            margin_db=margin,
            silent=self.silent,
            task="" if task is None or not told else task.looks,
            figures=told,
            reshaped=reshaped,
            short_db=short_db(each_db, least_db, self._stated) if self._stated and least_db is not None else 0.0,
        )

    def each_db(self, outputs: Sequence[Outputs]) -> tuple[float, ...]:
        """SQNR of each sample's worst output, in dB, from a model's ``outputs`` on the same samples.

        An output that is zero in a sample is measured by its mean energy over all of them; a part that is all but
        silent there, as the scores are where nothing is found, by a tenth of it. Log odds count over all samples only.
        """
        return tuple(float(db) for db in self._errors(self._split(outputs))[2])

    def _each_db(self, name: str, signal: np.ndarray, noise: np.ndarray) -> list[float]:
        """SQNR of an output in each sample, from its energies there."""
        if name in self.parts.names or self.parts.are_odds(name):
            signal = np.maximum(signal, _QUIET * signal.mean())
        return [sqnr_db(s, n) for s, n in zip(signal, noise, strict=True)]

    def _split(self, outputs: Sequence[Outputs]) -> list[Outputs]:
        each = self._padding.without_each(outputs)
        if self.task is not None:
            each = [self.task.aligned(want, got) for want, got in zip(self._wanted, each, strict=True)]
        return [self.parts.split(outputs) for outputs in each]

    def pairs(self, outputs: Sequence[Outputs]) -> Pairs | None:
        """The metric of a model and of the float model, sample by sample, from its ``outputs``; None without a metric.

        Raises:
            DataError: the metric fails.
        """
        metric, labels, in_float = self._metric, self._labels, self.float_metric
        if metric is None or in_float is None:
            return None
        ours, outputs = self._for_metric(outputs)
        hits = [hits_of(metric, each, ours, labels) for each in (ours, outputs)]

        def value(of: Sequence[Outputs], chosen: np.ndarray) -> float:
            picked, truth = [of[i] for i in chosen], [ours[i] for i in chosen]
            return value_of(metric, picked, truth, None if labels is None else labels[chosen])

        def drop_of(chosen: np.ndarray) -> float:
            return value(ours, chosen) - value(outputs, chosen)

        if isinstance(metric, Agreement) and metric.sums is not None:
            sums = [metric.sums([got], [want]) for got, want in zip(outputs, ours, strict=True)]
            drop_of = partial(_lost_share, np.stack(sums))
        found = value_of(metric, outputs, ours, labels)
        return Pairs(
            name=str(self.bound.metric),
            value=found,
            drop=in_float - found,
            samples=len(outputs),
            hits=(hits[0], hits[1]) if hits[0] is not None and hits[1] is not None and hits[0].size else None,
            is_agreement=isinstance(metric, Agreement),
            drop_of=drop_of,
        )

    def _in_float(self) -> float | None:
        return self._metric_of(self.reference)

    def _metric_of(self, outputs: Sequence[Outputs]) -> float | None:
        if self._metric is None:
            return None
        return value_of(self._metric, self._for_metric(outputs)[1], self._wanted, self._labels)

    def _for_metric(self, outputs: Sequence[Outputs]) -> tuple[Sequence[Outputs], Sequence[Outputs]]:
        """The float model's outputs and others as the metric takes them: agreements without padding."""
        if isinstance(self._metric, Agreement):
            return self._wanted, self._padding.without_each(outputs)
        return self.reference, outputs

    def _reshaped(self, outputs: Sequence[Outputs]) -> str:
        """Which outputs have another shape than float's, and in how many samples; empty where none has."""
        said = []
        for name in self.reference[0] if self.reference else ():
            pairs = [(want[name], got.get(name)) for want, got in zip(self.reference, outputs, strict=True)]
            differing = [(want, y) for want, y in pairs if y is None or y.shape != want.shape]
            if not differing:
                continue
            want, y = differing[0]
            shapes = "" if y is None else f" ({list(y.shape)} in place of {list(want.shape)})"
            where = f"{len(differing)} of {len(pairs)} samples{shapes}"
            said.append(f"output {name} has another shape than float's in {where}")
        if len(said) < 2:
            return "".join(said)
        return f"{said[0]}, and {counted(len(said) - 1, 'further output differs', 'further outputs differ')} in shape"

    def _reason(self, worst: OutputError, margin: float, reshaped: str) -> str:
        least = self.bound.min_sqnr_db
        if least is not None and reshaped and worst.sqnr_db < least:
            return reshaped
        if least is not None and worst.sqnr_db < least + margin:
            required = f"below {least:g} dB"
            if margin >= 0.05:
                required = (
                    f"below the {least + margin:.1f} dB required: {least:g} dB and a margin of {margin:.1f} dB for the "
                    "spread between samples"
                )
            found = f"SQNR of output {worst.name} is {worst.sqnr_db:.1f} dB"
            if worst.name in self._decisions:
                share = min(1.0, 10.0 ** (-worst.sqnr_db / 10.0))
                found = f"{share:.1%} of the integers in output {worst.name} change: {worst.sqnr_db:.1f} dB"
            return f"{found}, {required}"
        return ""

    def _fall(self, outputs: Sequence[Outputs], drop: float | None) -> str:
        """That the metric falls too far, in what it counts where it counts; empty where it does not."""
        most = self.bound.max_drop
        if most is None or drop is None or drop <= most + 1e-12 or self._metric is None:
            return ""
        ours, outputs = self._for_metric(outputs)
        hits = hits_of(self._metric, outputs, ours, self._labels)
        counted = "" if hits is None or not hits.size else f"{round(drop * hits.size)} of {hits.size} "
        fallen = f"{counted}({plain(drop, 4)})" if counted else plain(drop, 4)
        return f"{self.bound.metric} falls by {fallen}, more than {most:g}"

    def _errors(self, outputs: Sequence[Outputs]) -> tuple[list[OutputError], float, np.ndarray]:
        """The error of each output, the margin that the worst asks for, and what :meth:`each_db` gives."""
        errors, found = list[OutputError](), np.full(len(outputs), EXACT_DB)
        margin, worst = 0.0, np.inf
        for name in (n for n in (self._divided[0] if self._divided else ()) if n not in self.silent):
            compare = changes if name in self._decisions else energies
            pairs = [(want[name], got.get(name)) for want, got in zip(self._divided, outputs, strict=True)]
            signal, noise, dot, other = np.array([compare(want, got) for want, got in pairs]).T
            if not self.parts.are_odds(name):
                usual = np.where(signal > 0.0, signal, signal.mean())
                found = np.minimum(found, self._each_db(name, usual, noise))
            parts = (slice(self._apart), slice(None))
            total = min(sqnr_db(float(signal[part].sum()), float(noise[part].sum())) for part in parts)
            norm = float(np.sqrt(signal.sum() * other.sum()))
            is_amount = name not in self._decisions and not self.parts.are_odds(name)
            gone = ""
            if is_amount and total < _LOST_DB and np.isfinite(noise).all():
                gone = lost([want[name] for want in self._divided], [got[name] for got in outputs])
            errors.append(OutputError(name, total, float(dot.sum()) / norm if norm > 0 else 1.0, gone))
            if total < worst:
                worst = total
                each = np.array(self._each_db(name, signal, noise))
                margin = 0.0 if self._confidence is None else margin_db(each, self._apart, self._confidence)
        return errors, margin, found


def _reason_lost(error: OutputError) -> str:
    return (
        f"output {error.name} is lost: it {error.lost}, whereas it varies in the float model; whatever the bound, a "
        "model must keep every part of its outputs"
    )


def sqnr_db(signal: float, noise: float) -> float:
    """``10 log10(signal / noise)``, within [-300, 300]; the least where ``noise`` is not finite."""
    if not np.isfinite(noise):
        return -EXACT_DB
    if noise <= 0.0:
        return EXACT_DB
    return float(np.clip(10.0 * np.log10(max(signal, 1e-300) / noise), -EXACT_DB, EXACT_DB))


def _lost_share(sums: np.ndarray, chosen: np.ndarray) -> float:
    """What is lost in some samples, from what adds up in each, shape (samples, ratios, 2)."""
    return 1.0 - least_ratio(sums[chosen].sum(axis=0))


def _silent(outputs: Sequence[Outputs]) -> tuple[str, ...]:
    """Amounts that are one and the same number everywhere, such as boxes where nothing was found: nothing to compare.

    None where all outputs are like that, or one number for each sample, which may well be the same in a few.
    """
    found = []
    for name, first in (outputs[0] if outputs else {}).items():
        each = [y.get(name, np.empty(0)) for y in outputs]
        if _decides(first.dtype) or not all(y.size for y in each):
            continue
        value = first.flat[0]
        if (value == 0 or first.size > 1) and all(np.all(y == value) for y in each):
            found.append(name)
    return tuple(found) if len(found) < len(outputs[0] if outputs else {}) else ()


def _decides(dtype: np.dtype[Any]) -> bool:
    """Whether outputs of a type are decisions, which are equal or not, rather than amounts."""
    return dtype.kind not in "fiu" or (dtype.kind in "iu" and dtype.itemsize > 2)


def margin_db(each: np.ndarray, others: int, confidence: float) -> float:
    """How far the mean of so many ``others`` may fall below the mean of these, in dB.

    A one-sided prediction bound (Student's t) from the variance between samples, blended with that of other models
    (:func:`~inlay.quant.tolerance.spread_db`), but at least ``2 / sqrt(n)`` dB: a few samples, often of one scene, vary
    too little.
    """
    n = each.size
    if not n:
        return MIN_MARGIN_DB
    from scipy.special import stdtrit  # takes long to load: what is refused or fails before is so at once

    spread = spread_db(np.minimum(each, MAX_DB))
    bound = stdtrit(USUAL_WEIGHT + n - 1, confidence) * spread * np.sqrt(1.0 / n + 1.0 / max(others, 1))
    return float(np.clip(bound, MIN_MARGIN_DB / np.sqrt(n), MAX_MARGIN_DB))
