"""What is delivered, as a value: its figures, and what the file holds."""

from __future__ import annotations

import math

import numpy as np
import onnx

from inlay.data import Workload
from inlay.model.load import file_sha256
from inlay.model.store import model_bytes
from inlay.run.confirm.contenders import Entry
from inlay.run.result import Best, ShapeFigures
from inlay.trial import Accuracy, Interval, Measured


def ratio_of(gained: Interval, reference: Interval) -> Interval:
    """One speed-up over another of the same model, with all that both intervals leave open.

    Few readings leave everything open: an interval from 0 to infinity.
    """
    high = gained.high / reference.low if reference.low > 0.0 else math.inf
    return Interval(gained.value / reference.value, gained.low / reference.high, high)


def latency_ms(baseline_ns: float, gained: Interval) -> float:
    """Milliseconds of a model that is so much faster than one of ``baseline_ns``.

    Medians of two models have another ratio than their readings have in pairs, and readings of different moments may
    say the opposite: a latency that stands beside a speed-up follows from it.
    """
    return baseline_ns / gained.value / 1e6


def by_shape(base: Entry, champion: Entry, workload: Workload) -> tuple[ShapeFigures, ...]:
    """The figures of what is delivered on each feed of a workload; none where there is one, or no readings of each."""
    if base.by_feed is None or champion.by_feed is None:
        return ()
    ratios = np.exp(np.median(np.log(base.by_feed / champion.by_feed), axis=0))
    before = np.median(base.by_feed, axis=0) / 1e6
    return tuple(
        ShapeFigures({n: list(s) for n, s in shapes}, weight, float(was), float(was / ratio), float(ratio))
        for shapes, weight, was, ratio in zip(workload.shapes, workload.weights, before, ratios, strict=True)
    )


def best_of(
    base: Entry,
    champion: Entry,
    over_given: Interval,
    over_float: Interval,
    verified: Accuracy | None,
    shapes: tuple[ShapeFigures, ...] = (),
) -> Best:
    """What is delivered, with its speed-ups, its accuracy on unseen samples, and its figures by shape."""
    outcome = champion.candidate.trial.outcome
    assert isinstance(outcome, Measured)
    proto = onnx.load(str(champion.file.path), load_external_data=False)
    types = [n.op_type for n in proto.graph.node]
    return Best(
        origin=champion.candidate.trial.proposal.origin,
        placement_digest=champion.candidate.trial.proposal.placement.digest,
        latency_ms=latency_ms(float(np.median(base.own_ns)), over_given),
        speedup=over_given,
        over_float=over_float,
        selection=outcome.accuracy,
        verification=verified,
        qdq_pairs=types.count("QuantizeLinear"),
        is_float=not champion.candidate.placement and not {"QuantizeLinear", "DequantizeLinear"} & set(types),
        output_sha256=file_sha256(champion.file.path),
        size_bytes=model_bytes(champion.file.path),
        shapes=shapes,
    )
