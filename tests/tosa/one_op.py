"""One operator between Q/DQ nodes, lowered and compared three ways; hypothesis strategies for its qparams."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from inlay.tosa.lowering import lower
from tests.tosa.nets import Net, run_ort, three_ways

ScaleZero = tuple[float, int]

few = settings(max_examples=25, deadline=None)
zero = st.integers(-128, 127)
scale = st.floats(0.004, 0.2).map(lambda s: float(np.float32(s)))
scale_zeros = st.tuples(scale, zero)
seeds = st.integers(0, 2**31)


def check(n: Net, out: str, to: ScaleZero, seed: int, limit: float = 1.0, spread: float = 3.0) -> None:
    """Quantize ``out``, lower everything into one TOSA partition, and compare three ways."""
    n.output(n.qdq(out, *to))
    model = n.model()
    lowered = lower(model)
    assert not lowered.not_lowered, lowered.not_lowered
    assert [p.kind for p in lowered.partitions] in (["tosa"], [])  # nothing is left of a movement that moves nothing
    rng = np.random.default_rng(seed)
    feed = {
        v.name: (rng.normal(size=[d.dim_value for d in v.type.tensor_type.shape.dim]) * spread).astype(np.float32)
        for v in model.graph.input
    }
    three_ways(model, feed, lsb=to[0], limit=limit)


def covering(model_net: Net, out: str, zp: int) -> ScaleZero:
    """A scale that covers what ``out`` takes on, so that the comparison is not one of saturated values."""
    probe = Net(model_net.opset)
    probe.nodes, probe.initializers, probe.inputs = model_net.nodes, model_net.initializers, model_net.inputs
    probe.outputs = []
    probe.output(out)
    model = probe.model()
    rng = np.random.default_rng(1)
    feed = {
        v.name: (rng.normal(size=[d.dim_value for d in v.type.tensor_type.shape.dim]) * 3).astype(np.float32)
        for v in model.graph.input
    }
    value = run_ort(model, feed)[0]
    return float(np.float32(max(float(np.abs(value).max()), 1e-3) / 110)), zp
