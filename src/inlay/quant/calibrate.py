"""Observe every value that may be quantized, over all calibration samples, in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from inlay.model.graph import Graph, Shape
from inlay.model.reference import Session, in_batches, with_outputs
from inlay.model.store import WeightStore
from inlay.quant.observers import Histogram

BATCH_BYTES = 1 << 30
"""Intermediate values of one sample that are held at a time."""


@dataclass(frozen=True, eq=False)
class Observed:
    """What the calibration samples showed.

    Attributes:
        histograms: by value name.
        digest: identifies all of it.
    """

    histograms: Mapping[str, Histogram]
    digest: str


def calibrate(
    proto: onnx.ModelProto,
    store: WeightStore,
    graph: Graph,
    values: Sequence[str],
    feeds: Iterable[Mapping[str, np.ndarray]],
) -> Observed:
    """Histograms of ``values`` over ``feeds``.

    The model runs once for each sample, with the observed values as extra outputs, in as many sessions as
    ``BATCH_BYTES`` asks for (one, for all but very large activations).

    Raises:
        CompileFailed, RunFailed: the float model does not run.
    """
    feeds = list(feeds)
    given = set(graph.inputs)
    histograms = {v: Histogram() for v in values}
    for value in values:
        if value in given:
            for feed in feeds:
                histograms[value].update(feed[value])
    computed = [v for v in values if v not in given]
    sizes = {v: 4 * (graph.size(v) or 0) for v in computed}
    for batch in in_batches(computed, sizes, BATCH_BYTES):
        session = Session(with_outputs(proto, batch), store)
        for feed in feeds:
            for value, array in session.run(feed).items():
                histograms[value].update(array)
    digest = hashlib.sha256("".join(f"{v}{histograms[v].digest}" for v in sorted(histograms)).encode()).hexdigest()[:16]
    return Observed(histograms, digest)


_TYPES = {
    "tensor(float)": ir.DataType.FLOAT,
    "tensor(float16)": ir.DataType.FLOAT16,
    "tensor(double)": ir.DataType.DOUBLE,
    "tensor(int64)": ir.DataType.INT64,
    "tensor(int32)": ir.DataType.INT32,
    "tensor(bool)": ir.DataType.BOOL,
    "tensor(uint8)": ir.DataType.UINT8,
    "tensor(int8)": ir.DataType.INT8,
}


def observe_shapes(
    proto: onnx.ModelProto, store: WeightStore, values: Sequence[str], feed: Mapping[str, np.ndarray]
) -> tuple[dict[str, Shape], dict[str, ir.DataType]]:
    """Shapes and element types of ``values`` as the runtime finds them on one feed.

    This is exact where shape inference gives up: dynamic dimensions, data-dependent shapes, operators of other domains.
    """
    session = Session(with_outputs(proto, values), store)
    arrays = session.run(feed)
    shapes: dict[str, Shape] = {v: tuple(a.shape) for v, a in arrays.items() if isinstance(a, np.ndarray)}
    return shapes, {v: _TYPES[t] for v, t in session.types.items() if t in _TYPES}
